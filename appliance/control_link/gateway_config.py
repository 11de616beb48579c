"""The configuration of one gateway process, handed over as JSON on an inherited descriptor."""

import msgspec


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a gateway needs to start; what may change later comes in `FleetState`."""

    name: str
    """`gateway-0`, ..."""
    index: int
    epoch: int
    run_dir: str
    """Directory of the ipc sockets, see `engine.wire.addresses`."""
    tcp_fd: int
    """Descriptor of the bound and listening TCP socket."""
    unix_fd: int | None = None
    """Descriptor of the bound and listening unix socket: everybody there is the local user."""
    cors_origins: tuple[str, ...] = ()
    strict_parameters: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    drain_s: float = 30.0
    log_level: str = "info"
    log_format: str = "text"
    """`text` or `json`."""
