"""A fake gateway as a process: the real control link, and its epoch for each connection."""

import argparse
import asyncio
import os
import socket
import sys
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from appliance.control_link.gateway_config import GatewayConfig
from appliance.control_link.messages import (
    AbortHeld,
    AbortResult,
    FleetState,
    GatewayHello,
    GatewayStopped,
    Shutdown,
    StateAck,
    WakeEngine,
)
from appliance.control_link.supervisor_end import CONTROL_CODEC
from engine.parent_death import watch_parent
from engine.wire.addresses import control_address, engine_identity
from engine.wire.header import new_context
from engine.wire.messages import Body
from engine.wire.sockets import HeaderMaker, connect_dealer, split


class FakeGateway:
    """Holds request `req-held`, wakes what sleeps when told to by a connection, and acks states."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.state: FleetState | None = None
        self._headers = HeaderMaker(config.name, config.epoch)
        self._context = zmq.asyncio.Context()
        self._socket = connect_dealer(
            self._context,
            control_address(Path(config.run_dir)),
            engine_identity(config.name, config.epoch),
        )

    async def send(self, body: Body) -> None:
        header = self._headers.make(new_context(), 0)
        await self._socket.send_multipart(CONTROL_CODEC.encode(header, body))

    async def run(self) -> None:
        server = await asyncio.start_server(
            self._answer, sock=socket.socket(fileno=os.dup(self.config.tcp_fd))
        )
        config = self.config
        await self.send(
            GatewayHello(name=config.name, index=config.index, epoch=config.epoch, pid=os.getpid())
        )
        while True:
            body = split(await self._socket.recv_multipart(), CONTROL_CODEC).body
            match body:
                case FleetState():
                    self.state = body
                    await self.send(StateAck(sequence=body.sequence))
                case AbortHeld():
                    found = body.request_id == "req-held"
                    await self.send(
                        AbortResult(call_id=body.call_id, found=found, completion_tokens=3 * found)
                    )
                case Shutdown():
                    await self.send(GatewayStopped(name=config.name))
                    await asyncio.sleep(0.05)
                    server.close()
                    self._context.destroy(linger=100)
                    return

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode().split()
        match line:
            case ["wake", engine_id]:
                await self.send(WakeEngine(engine_id=engine_id, request_id="req-1"))
            case ["state"]:
                assert self.state is not None
                writer.write(msgspec.json.encode(self.state) + b"\n")
            case _:
                writer.write(b"%d\n" % self.config.epoch)
        await writer.drain()
        writer.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-fd", type=int)
    parser.add_argument("--parent-fd", type=int)
    arguments = parser.parse_args()
    watch_parent(arguments.parent_fd)
    with os.fdopen(arguments.config_fd, "rb") as file:
        config = msgspec.json.decode(file.read(), type=GatewayConfig)
    asyncio.run(FakeGateway(config).run())


if __name__ == "__main__":
    sys.exit(main())
