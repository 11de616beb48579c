"""The listening sockets: bound before anything slow, kept by the supervisor, handed to gateways.

Standard library only, because it runs first: the data port must answer a connection within a
fraction of a second of the start.
"""

import errno
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

BACKLOG = 2048
DATA_PLANE = "data plane"
CONTROL_PLANE = "control plane"


class ListenError(Exception):
    """An address cannot be listened on; the message says which and what to do.

    `setting` names the one to change.
    """

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


@dataclass(slots=True)
class Listeners:
    """All listening sockets of one appliance."""

    data: list[socket.socket] = field(default_factory=list[socket.socket])
    """One per gateway."""
    admin: list[socket.socket] = field(default_factory=list[socket.socket])
    data_unix: socket.socket | None = None
    admin_unix: socket.socket | None = None

    @property
    def data_port(self) -> int:
        """The bound port of the data plane."""
        return int(self.data[0].getsockname()[1])

    @property
    def admin_port(self) -> int:
        """The bound port of the control plane."""
        return int(self.admin[0].getsockname()[1])

    def close(self) -> None:
        """Close all of them."""
        unix = [s for s in (self.data_unix, self.admin_unix) if s is not None]
        for each in (*self.data, *self.admin, *unix):
            each.close()


def bind_data_plane(listeners: Listeners, host: str, port: int, gateways: int) -> None:
    """Bind one TCP socket per gateway.

    Several sockets on one port let the kernel spread connections evenly; a single socket that
    several processes accept from gives nearly all of them to one. Raises ListenError.
    """
    if gateways > 1 and port:
        # a shared port would let us bind beside another appliance of this user: ask alone first
        bind_tcp(DATA_PLANE, host, port, share=False).close()
    for _ in range(gateways):
        bound = bind_tcp(DATA_PLANE, host, port, share=gateways > 1)
        listeners.data.append(bound)
        port = int(bound.getsockname()[1])  # port 0: the others must share what the first got


def bind_control_plane(listeners: Listeners, host: str, port: int) -> None:
    """Bind the control plane's TCP socket. Raises ListenError."""
    listeners.admin.append(bind_tcp(CONTROL_PLANE, host, port, share=False))


def bind_tcp(plane: str, host: str, port: int, *, share: bool) -> socket.socket:
    """Bind and listen on one TCP address. Raises ListenError."""
    address = host.strip("[]")
    try:
        family, _, _, _, target = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ListenError(f"{plane}: {host} is not an address of this machine: {error}") from error
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # connections inherit it; asyncio would set it only on a socket made with IPPROTO_TCP, and
        # without it an answer in two writes waits 40 ms for the client's delayed acknowledgement
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(target)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        setting = "port" if plane == DATA_PLANE else "admin_port"
        raise ListenError(_explain(plane, host, port, error), setting) from error
    listening.setblocking(False)
    return listening


def bind_unix(path: Path) -> socket.socket:
    """Bind and listen on a unix socket that only this user may connect to. Raises ListenError."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        listening.bind(str(path))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ListenError(f"cannot listen on {path}: {error.strerror or error}") from error
    finally:
        os.umask(before)
    listening.setblocking(False)
    return listening


def _taken(plane: str, host: str, port: int) -> str:
    flag = "--port" if plane == DATA_PLANE else "--admin-port"
    return (
        f"{plane}: port {port} on {host} is in use. Stop the program that holds it"
        f" (`ss -ltnp 'sport = :{port}'` names it) or choose another with {flag}."
    )


def _explain(plane: str, host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return _taken(plane, host, port)
    if error.errno == errno.EACCES:
        return f"{plane}: port {port} needs privileges; choose one above 1023."
    return f"{plane}: cannot listen on {host}:{port}: {error.strerror}"
