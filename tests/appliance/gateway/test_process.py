"""The gateway as a real process: quick to answer, deaf to ctrl-c, orderly on SIGTERM."""

import asyncio
import os
import signal
import socket
import sys
import time

import httpx
import msgspec
import pytest

from appliance.control_link.gateway_config import GatewayConfig
from appliance.control_link.messages import GatewayHello, GatewayStopped
from engine.config import ClientEndpoint, EngineConfig
from engine.wire.addresses import input_address, output_address
from tests.appliance.gateway.fake_supervisor import GATEWAY, KEY, MODEL, FakeSupervisor, a_route
from tests.appliance.gateway.stand import CHAT
from tests.fakes import FakeEngine

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def spawn(run_dir, **config_fields: object):
    """Start a gateway; return the process, its port and the write end of its parent's pipe."""
    tcp = socket.create_server(("127.0.0.1", 0))
    port = tcp.getsockname()[1]
    config = GatewayConfig(
        name=GATEWAY, index=0, epoch=1, run_dir=str(run_dir), tcp_fd=tcp.fileno(), **config_fields
    )
    config_read, config_write = os.pipe()
    parent_read, parent_write = os.pipe()
    os.write(config_write, msgspec.json.encode(config))
    os.close(config_write)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "appliance.gateway",
        "--config-fd", str(config_read), "--parent-fd", str(parent_read),
        pass_fds=(config_read, parent_read, *(f for f in (config.tcp_fd, config.unix_fd) if f)),
    )  # fmt: skip
    os.close(config_read)
    os.close(parent_read)
    tcp.close()
    return process, port, parent_write


async def test_it_answers_soon_and_ends_in_order(run_dir, tiny_model_path):
    supervisor = FakeSupervisor(run_dir)
    supervisor.engines["e0"] = a_route(tiny_model_path, state="starting", ready=None)
    async with asyncio.TaskGroup() as tasks:
        supervising = tasks.create_task(supervisor.run())
        start_s = time.monotonic()
        process, port, parent = await spawn(run_dir)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:
            answer = await http.get("/startupz")
            took_s = time.monotonic() - start_s
        hello = await supervisor.hear(GatewayHello)
        process.send_signal(signal.SIGINT)
        process.terminate()
        code = await asyncio.wait_for(process.wait(), 10)
        await supervisor.hear(GatewayStopped)
        os.close(parent)
        supervising.cancel()

    assert answer.status_code == 503
    assert hello.pid == process.pid
    assert code == 0
    assert took_s < 5  # about 0.4 s on an idle machine


async def test_the_real_process_serves_both_listeners(run_dir, tiny_model_path):
    supervisor = FakeSupervisor(run_dir)
    supervisor.engines["e0"] = a_route(tiny_model_path)
    unix_path = str(run_dir / "data.sock")
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(unix_path)
    unix.listen()
    endpoint = ClientEndpoint(
        name=GATEWAY, input=input_address(run_dir, GATEWAY), output=output_address(run_dir, GATEWAY)
    )
    engine = FakeEngine(
        EngineConfig(engine_id="e0", epoch=1, model="", model_name=MODEL, clients=(endpoint,))
    )
    async with asyncio.TaskGroup() as tasks:
        helpers = [tasks.create_task(supervisor.run()), tasks.create_task(engine.run())]
        process, port, parent = await spawn(run_dir, unix_fd=unix.fileno())
        unix.close()
        url, body = "/v1/chat/completions", {**CHAT, "max_tokens": 8}
        transport = httpx.AsyncHTTPTransport(uds=unix_path)
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as tcp,
            httpx.AsyncClient(
                base_url="http://localhost", transport=transport, timeout=20
            ) as local,
        ):
            key = {"authorization": f"Bearer {KEY}"}
            plain = await tcp.post(url, json=body, headers=key)
            stream = await local.post(url, json={**body, "stream": True})
            shut = await tcp.post(url, json=body)
        process.terminate()
        code = await asyncio.wait_for(process.wait(), 10)
        await supervisor.hear(GatewayStopped)
        os.close(parent)
        for helper in helpers:
            helper.cancel()

    assert (plain.status_code, stream.status_code, shut.status_code) == (200, 200, 401)
    assert plain.json()["usage"]["completion_tokens"] == 8
    assert stream.text.endswith("data: [DONE]\n\n")
    assert code == 0
    assert supervisor.stale == 0


async def test_it_dies_with_its_parent(run_dir, tiny_model_path):
    process, _, parent = await spawn(run_dir)

    os.close(parent)

    assert await asyncio.wait_for(process.wait(), 10) == 71


async def test_it_loads_neither_torch_nor_numpy_nor_templates_at_start():
    code = (
        "import sys, appliance.gateway.serve, uvloop;"
        "heavy = {'torch', 'numpy', 'tokenizers', 'jinja2', 'pydantic', 'transformers'};"
        "sys.exit(bool(heavy & set(sys.modules)))"
    )

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)

    assert await process.wait() == 0
