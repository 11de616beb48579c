"""Where sockets live and how engines are named on them.

ipc paths end at 107 bytes on Linux, so the run directory must be short (unix(7), sun_path).
"""

from pathlib import Path

MAX_IPC_PATH_BYTES = 107
MAX_CLIENT_NAME_BYTES = 24


def check_run_dir(run_dir: Path) -> None:
    """Make sure that every socket path in `run_dir` fits.

    Raises:
        ValueError: the directory's path is too long.
    """
    longest = len(str(run_dir).encode()) + 1 + MAX_CLIENT_NAME_BYTES + len(".out")
    if longest > MAX_IPC_PATH_BYTES:
        raise ValueError(
            f"the run directory {run_dir} is too long for unix sockets: "
            f"{longest} bytes, at most {MAX_IPC_PATH_BYTES}"
        )


def input_address(run_dir: Path, client: str) -> str:
    """Where a client's ROUTER listens for engines."""
    return f"ipc://{run_dir}/{client}.in"


def output_address(run_dir: Path, client: str) -> str:
    """Where a client's PULL takes what engines send."""
    return f"ipc://{run_dir}/{client}.out"


def control_address(run_dir: Path) -> str:
    """Where the supervisor's ROUTER listens for gateways."""
    return f"ipc://{run_dir}/control"


def engine_identity(engine_id: str, epoch: int) -> bytes:
    """Name of an engine's DEALER: the epoch in it makes an old engine unreachable."""
    return f"{engine_id}-{epoch}".encode()


def parse_identity(identity: bytes) -> tuple[str, int]:
    """Undo `engine_identity` (gateways on the control link are named alike).

    Raises:
        ValueError: not of the form `name-epoch`.
    """
    name, _, epoch = identity.decode("ascii").rpartition("-")
    if not name or not epoch.isdigit():
        raise ValueError(f"not an identity: {identity!r}")
    return name, int(epoch)
