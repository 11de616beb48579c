"""A control plane over in-memory ports on a real unix socket, and the command line against it."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn

from appliance.cli.main import main
from appliance.supervisor.admin.app import create_admin_apps
from tests.appliance.supervisor.admin.in_memory import Fleet, Hub, Keys
from tests.appliance.supervisor.admin.in_memory_insight import InMemoryInsight


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@dataclass
class Appliance:
    fleet: Fleet
    hub: Hub
    keys: Keys
    url: str
    insight: InMemoryInsight
    go_away: Callable[[], None]
    """Let nobody answer on the unix socket."""
    come_back: Callable[[], None]


Run = Callable[..., Result]


class _Server:
    """One uvicorn in a thread."""

    def __init__(self, app: object, listener: socket.socket) -> None:
        config = uvicorn.Config(app, log_level="error", lifespan="off", proxy_headers=False)
        self._server = uvicorn.Server(config)
        self._listener = listener
        self._thread = threading.Thread(target=self._server.run, args=([listener],))
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._server.should_exit = True

    def join(self) -> None:
        self._thread.join()
        self._listener.close()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("QUARTERDECK_") and name != "QUARTERDECK_WEIGHT_CACHE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("QUARTERDECK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> Result:
        monkeypatch.setattr("sys.argv", ["quarterdeck", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return Result(int(left.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def appliance(tmp_path: Path, run_dir: Path) -> Iterator[Appliance]:
    fleet, hub, keys, insight = Fleet(), Hub(), Keys(), InMemoryInsight()
    tcp, local = create_admin_apps(fleet, hub, keys, insight.port())
    path = run_dir / "admin.sock"
    tcp_listener = socket.create_server(("127.0.0.1", 0))
    port = tcp_listener.getsockname()[1]
    servers = [_Server(tcp, tcp_listener)]

    def come_back() -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        servers.append(_Server(local, listener))

    def go_away() -> None:
        server = servers.pop()
        server.ask_to_stop()
        server.join()
        path.unlink()

    come_back()
    instance = {
        "pid": os.getpid(),
        "run_dir": str(run_dir),
        "admin_socket": str(path),
        "data_socket": str(run_dir / "data.sock"),
        "host": "127.0.0.1",
        "port": 1,
        "admin_port": port,
    }
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "instance.json").write_text(json.dumps(instance))
    url = f"http://127.0.0.1:{port}"
    yield Appliance(fleet, hub, keys, url, insight, go_away, come_back)
    for server in servers:
        server.ask_to_stop()
    for server in servers:
        server.join()
