"""Serves the control plane on its two listeners: TCP with keys, unix for the local user."""

import asyncio
import socket
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from appliance.embedded_server import EmbeddedServer

GRACE_S = 1
"""Event streams never end by themselves: at the end they are cut after this long."""


class AdminServer:
    """Both listeners of the control plane.

    Args:
        tcp_app: Needs a key.
        unix_app: Trusts the local user. Trust follows the listener, never a header.
    """

    def __init__(
        self,
        tcp_app: ASGIApp,
        unix_app: ASGIApp,
        *,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
    ) -> None:
        tcp = _config(tcp_app)
        if tls_cert is not None:
            tcp.ssl_certfile = tls_cert
            tcp.ssl_keyfile = tls_key
        self._tcp = EmbeddedServer(tcp)
        self._unix = EmbeddedServer(_config(unix_app))

    async def run(self, tcp: list[socket.socket], unix: socket.socket) -> None:
        """Serve until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tcp.serve(sockets=tcp))
            tasks.create_task(self._unix.serve(sockets=[unix]))

    def stop(self) -> None:
        """Stop accepting and let `run` return."""
        self._tcp.should_exit = True
        self._unix.should_exit = True


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=True,
        lifespan="off",
        timeout_graceful_shutdown=GRACE_S,
    )
