"""A canary key and a canary prompt are nowhere but where they belong.

One appliance gets secrets in every way that there is, and prompts on every path, good and bad; it
is asked wrong things, both of its engines are killed in the middle of a stream. Then everything
that it left is looked through: terminal, log file, API, metrics, traces, exported spans, flight
recorder, stack dumps, audit log, profiles, environments and command lines.
"""

import gzip
import json
import re
import shutil
import signal
import sqlite3
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.appliance_process import ApplianceProcess, wait_until
from tests.integration.streams import Stream

pytestmark = pytest.mark.process

FILE_KEY = "canary-file-key-5417c0ffee"
OTLP_TOKEN = "canary-otlp-token-5417c0ffee"
URL_PASSWORD = "canary-url-password-5417c0ffee"
ENV_SECRET = "canary-environment-5417c0ffee"
WRONG_KEY = "qd_0badc0ffee_canaryWrongKey5417"
PROMPT = "CANARY5417prompt"
ALLOWED = "allowed5417text"
"""Of a key that allows content, while content is on: it may be in traces, and only there."""

ENDPOINTS = (
    "logs?limit=5000", "audit?limit=1000", "requests?limit=1000", "traces?limit=1000",
    "events?limit=1000", "engines", "gateways", "operations", "keys", "stats", "system",
    "telemetry", "slos", "profiles", "engines/e0/flight", "engines/e0/flight?steps=4096",
    "openapi.json", "whoami", "audit/verify", "adapters",
)  # fmt: skip


class ByteSink:
    """An OTLP/HTTP collector that keeps bodies as bytes, and says whether it got the token."""

    def __init__(self) -> None:
        sink = self
        self.bodies: list[bytes] = []
        self.has_token = False

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                is_packed = self.headers.get("content-encoding") == "gzip"
                sink.bodies.append(gzip.decompress(body) if is_packed else body)
                sink.has_token |= OTLP_TOKEN in (self.headers.get("authorization") or "")
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Scene:
    """The appliance after all that happened, and what it must have kept to itself."""

    appliance: ApplianceProcess
    sink: ByteSink
    minted: str
    request_ids: list[str] = field(default_factory=list)
    allowed_id: str = ""
    texts: dict[str, str] = field(default_factory=dict)
    """What the API said, by path."""
    processes: dict[str, str] = field(default_factory=dict)
    """Command lines and environments, by process, of every generation."""

    @property
    def keys(self) -> list[str]:
        flags = [self.appliance.api_key, self.appliance.admin_key]
        others = [OTLP_TOKEN, URL_PASSWORD, ENV_SECRET, WRONG_KEY]
        return [FILE_KEY, self.minted, *flags, *others]

    def look_at_processes(self) -> None:
        assert self.appliance.process is not None
        for child in self.appliance.children():
            try:
                shown = " ".join(child.cmdline()) + str(child.environ())
            except psutil.Error:
                continue
            self.processes[f"{child.pid}"] = shown
        supervisor = psutil.Process(self.appliance.process.pid)
        self.processes["supervisor"] = " ".join(supervisor.cmdline())

    def look_at_api(self) -> None:
        for path in ENDPOINTS:
            answer = self.appliance.admin(f"/admin/v1/{path}")
            assert answer.status_code == 200, path
            self.texts[path] = answer.text
        self.texts["metrics"] = self.appliance.metrics()
        for command in (["postmortem", "e0"], ["logs", "-n", "5000"]):
            result = self.appliance.cli(*command)
            assert result.returncode == 0, result.stderr
            self.texts[" ".join(command)] = result.stdout + result.stderr
        for request_id in self.request_ids:
            for shape in ("", "/explanation", "/otlp", "/chrome"):
                path = f"traces/{request_id}{shape}"
                answer = self.appliance.admin(f"/admin/v1/{path}")
                assert answer.status_code == 200, path
                self.texts[path] = answer.text


@pytest.fixture(scope="module")
def scene(tiny_model_path: Path) -> Iterator[Scene]:
    root = Path(tempfile.mkdtemp(prefix="qd-it-", dir="/tmp"))
    sink = ByteSink()
    (root / "keys").write_text(f"{FILE_KEY}\n")
    (root / "keys").chmod(0o600)
    env = {
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{OTLP_TOKEN}",
        "SOMEBODYS_API_KEY": ENV_SECRET,
        "ftp_proxy": f"http://me:{ENV_SECRET}@127.0.0.1:9",
    }
    appliance = ApplianceProcess(
        root, str(tiny_model_path), "--dtype", "float32", "--drain-s", "1", "--engines", "2",
        "--api-key-file", str(root / "keys"), "--log-level", "debug",
        "--otlp-endpoint", sink.url.replace("//", f"//me:{URL_PASSWORD}@"), env=env,
    )  # fmt: skip
    try:
        appliance.start()
        scene = Scene(appliance, sink, minted="")
        play(scene)
        yield scene
    finally:
        if appliance.process is not None and appliance.process.poll() is None:
            appliance.stop()
        sink.close()
        shutil.rmtree(root, ignore_errors=True)


def play(scene: Scene) -> None:
    """Everything that happens, in order."""
    appliance = scene.appliance
    scene.minted = mint(appliance)
    ask(scene)
    ask_wrongly(scene)
    ask_the_control_plane_wrongly(appliance, scene.minted)
    scene.look_at_processes()
    profile(appliance)
    dump = appliance.admin("/admin/v1/engines/e0/stacks", "POST", timeout=30)
    assert dump.status_code == 200, dump.text
    scene.texts["stacks"] = dump.text
    ask_with_content(scene)
    for number in (signal.SIGKILL, signal.SIGABRT):
        kill_an_engine(scene, number)
    wait_until(lambda: all(traced(appliance, each) for each in scene.request_ids), 15, "traces")
    last = trace_id_of(scene, scene.request_ids[-1])
    wait_until(lambda: any(last in body for body in scene.sink.bodies), 15, "exported spans")
    scene.look_at_api()


def trace_id_of(scene: Scene, request_id: str) -> bytes:
    row = scene.appliance.admin(f"/admin/v1/requests/{request_id}").json()
    return bytes.fromhex(row["trace_id"])


def mint(appliance: ApplianceProcess, **fields: Any) -> str:
    body = {"name": "guest", "scope": "inference", **fields}
    return appliance.admin("/admin/v1/keys", "POST", json=body).json()["secret"]


def post(scene: Scene, path: str, body: object, key: str) -> httpx.Response:
    """Ask the data plane; its request ids are kept."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    url = f"{scene.appliance.url}{path}"
    return scene.appliance.http.post(url, content=content, headers=headers)


def chat_body(text: str = PROMPT, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0, **fields}


def ask(scene: Scene) -> None:
    """Right requests, with every kind of key."""
    wait_until(lambda: post(scene, "/tokenize", {"prompt": "x"}, scene.minted).status_code == 200)
    for key in (FILE_KEY, scene.minted, scene.appliance.api_key):
        for body in (chat_body(), chat_body(stream=True, n=2), chat_body(user=PROMPT, seed=1)):
            answer = post(scene, "/v1/chat/completions", body, key)
            assert answer.status_code == 200, answer.text
            scene.request_ids.append(answer.headers["x-request-id"])
    completion = {"model": "tiny", "prompt": [PROMPT, PROMPT], "max_tokens": 2, "echo": True}
    assert post(scene, "/v1/completions", completion, FILE_KEY).status_code == 200
    tokens = post(scene, "/tokenize", {"prompt": PROMPT}, FILE_KEY).json()["tokens"]
    assert post(scene, "/detokenize", {"tokens": tokens}, FILE_KEY).status_code == 200


def schema(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": fields}}


WRONG_BODIES: list[Any] = [
    b'{"messages": [{"role": "user", "content": "' + PROMPT.encode() + b'"}',
    b"\xff" + PROMPT.encode(),
    chat_body("\ud800" + PROMPT),
    b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800 '
    + PROMPT.encode()
    + b'"}]}',
    chat_body(PROMPT * 2000),
    chat_body(model=PROMPT),
    chat_body(messages=[{"role": PROMPT, "content": PROMPT}]),
    chat_body(messages=[{"role": "user", "content": [{"type": PROMPT, "text": PROMPT}]}]),
    chat_body(messages=PROMPT),
    chat_body(temperature=PROMPT),
    chat_body(stop=[PROMPT] * 9),
    chat_body(**{PROMPT: PROMPT}),
    chat_body(tools=[{"type": "function", "function": {"name": PROMPT}}]),
    chat_body(chat_template="{{ raise_exception('" + PROMPT + "') }}"),
    chat_body(chat_template_kwargs={PROMPT: PROMPT}),
    chat_body(logit_bias={PROMPT: 1}),
    chat_body(response_format=schema(**{"$ref": f"#/{PROMPT}"})),
    chat_body(response_format=schema(type=PROMPT)),
    chat_body(response_format=schema(type="string", pattern=f"({PROMPT}(?=x)")),
    chat_body(response_format=schema(type="object", **{f"{PROMPT}": {"not": {}}})),
    chat_body(structured_outputs={"regex": f"[{PROMPT}"}),
    chat_body(structured_outputs={"grammar": f"root ::= {PROMPT}"}),
    chat_body(structured_outputs={"grammar": f"start: /{PROMPT}("}),
    chat_body(structured_outputs={"choice": [PROMPT, 5]}),
]


def ask_wrongly(scene: Scene) -> None:
    """Wrong requests: what the answers quote is the client's, what is kept is not."""
    for body in WRONG_BODIES:
        answer = post(scene, "/v1/chat/completions", body, FILE_KEY)
        assert answer.status_code != 401, body
        assert answer.headers["x-request-id"]
    for key in (WRONG_KEY, scene.minted[:-1], PROMPT):
        assert post(scene, "/v1/chat/completions", chat_body(), key).status_code == 401
    for path in (f"/v1/{PROMPT}", f"/v1/models/{PROMPT}", f"/{FILE_KEY}", f"/?key={FILE_KEY}"):
        post(scene, path, chat_body(), FILE_KEY)
        scene.appliance.http.get(
            f"{scene.appliance.url}{path}", headers={"authorization": f"Bearer {FILE_KEY}"}
        )


def ask_the_control_plane_wrongly(appliance: ApplianceProcess, minted: str) -> None:
    """Secrets in the wrong places of admin calls."""
    for key in (minted, FILE_KEY, WRONG_KEY):
        appliance.admin(f"/admin/v1/keys/{key}", "DELETE")
        appliance.admin(f"/admin/v1/{key}", "POST")
        appliance.admin("/admin/v1/keys", "POST", json={"scope": key})
        appliance.admin("/admin/v1/keys", "POST", json={key: 1})
        appliance.admin(f"/admin/v1/adapters/{key}", "PUT", json={"path": f"/{key}"})
        appliance.http.post(
            f"{appliance.admin_url}/admin/v1/keys", headers={"authorization": f"Bearer {key}"}
        )


def profile(appliance: ApplianceProcess) -> None:
    """Profile a few steps while canaries are generated, one by each engine."""
    streams = [Stream(appliance, "tiny", PROMPT, max_tokens=200, ignore_eos=True) for _ in "12"]
    for stream in streams:
        stream.start()
    body = {"engine": "e0", "steps": 4, "duration_s": 10}
    begun = appliance.admin("/admin/v1/profiles", "POST", json=body, params={"wait": 20})
    assert begun.status_code == 202, begun.text
    operation = f"/admin/v1/operations/{begun.json()['id']}"
    wait_until(lambda: appliance.admin(operation).json()["state"] == "done", 30)
    for stream in streams:
        stream.join(30)


def kill_an_engine(scene: Scene, number: signal.Signals) -> None:
    """End an engine while it works on a canary; the next one is that of the other engine."""
    appliance = scene.appliance
    stream = Stream(appliance, "tiny", PROMPT, max_tokens=480, ignore_eos=True)
    stream.start()
    assert stream.started.wait(20)
    assert stream.request_id is not None
    row = f"/admin/v1/requests/{stream.request_id}"
    name = wait_until(lambda: appliance.admin(row).json().get("engine"), 10, "its engine")
    before = appliance.engine(name)
    psutil.Process(before["pid"]).send_signal(number)
    stream.join(30)
    scene.request_ids.append(stream.request_id)
    wait_until(lambda: appliance.engine(name)["pid"] != before["pid"], 10, f"{name} is dead")
    flight = appliance.admin(f"/admin/v1/engines/{name}/flight?epoch={before['epoch']}")
    assert flight.status_code == 200, flight.text
    assert stream.request_id in flight.text
    scene.texts[f"flight {number.name}"] = flight.text


def ask_with_content(scene: Scene) -> None:
    """Content is on: only the key that allows it has its text in its trace."""
    appliance = scene.appliance
    on = appliance.admin("/admin/v1/telemetry", "PATCH", json={"content": True})
    assert on.status_code == 200, on.text
    allowing = mint(appliance, allows_content=True)

    def is_recorded() -> bool:
        answer = post(scene, "/v1/chat/completions", chat_body(ALLOWED), allowing)
        scene.allowed_id = answer.headers["x-request-id"]
        return answer.status_code == 200 and wait_for_trace(appliance, scene.allowed_id)

    wait_until(is_recorded, 10)
    for key in (FILE_KEY, scene.minted):
        answer = post(scene, "/v1/chat/completions", chat_body(), key)
        scene.request_ids.append(answer.headers["x-request-id"])


def wait_for_trace(appliance: ApplianceProcess, request_id: str) -> bool:
    wait_until(lambda: traced(appliance, request_id), 10)
    return ALLOWED in appliance.admin(f"/admin/v1/traces/{request_id}").text


def traced(appliance: ApplianceProcess, request_id: str) -> bool:
    return appliance.admin(f"/admin/v1/traces/{request_id}").status_code == 200


# ------------------------------------------------------------ the search


def files(scene: Scene) -> Iterator[tuple[str, bytes]]:
    """Everything on the disk, as bytes, and what SQLite keeps compressed."""
    for directory in (scene.appliance.state_dir, Path(scene.appliance.instance["run_dir"])):
        for path in sorted(directory.rglob("*")):
            if not path.is_file():
                continue
            content = path.read_bytes()
            yield str(path), content
            if content.startswith(b"\x1f\x8b"):
                yield f"{path} unpacked", gzip.decompress(content)
            if content.startswith(b"SQLite format 3"):
                yield from ((f"{path}: {name}", value) for name, value in values_of(path))


def values_of(path: Path) -> Iterator[tuple[str, bytes]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        tables = [
            row[0]
            for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for table in tables:
            for row in database.execute(f"SELECT * FROM {table}"):  # noqa: S608
                for value in row:
                    yield table, unpacked(value)


def unpacked(value: object) -> bytes:
    if not isinstance(value, bytes):
        return str(value).encode()
    try:
        return zlib.decompress(value)
    except zlib.error:
        return value


def forms(needle: str) -> list[bytes]:
    return [needle.encode(), needle.encode("utf-16-le"), needle.encode().hex().encode()]


def places(scene: Scene, needle: str) -> list[str]:
    """Where a text is found."""
    wanted = forms(needle)
    found = [name for name, content in files(scene) if any(form in content for form in wanted)]
    texts = {
        "terminal": "\n".join(scene.appliance.output),
        **scene.texts,
        **{f"process {pid}": text for pid, text in scene.processes.items()},
    }
    found += [name for name, text in texts.items() if needle in text]
    found += ["otlp" for body in scene.sink.bodies if any(form in body for form in wanted)]
    return found


def test_the_search_finds_what_is_there(scene: Scene):
    """Else the tests below would prove nothing."""
    found = " ".join(places(scene, scene.request_ids[0]))
    for expected in ("traces.sqlite3", "otlp", "requests", "traces?"):
        assert expected in found, found
    assert "flight SIGKILL" in places(scene, scene.request_ids[-2])
    assert "flight SIGABRT" in places(scene, scene.request_ids[-1])
    assert scene.sink.has_token
    key_id = scene.minted.split("_")[1]
    found = " ".join(places(scene, key_id))
    for expected in (
        "audit.jsonl",
        "quarterdeck.jsonl",
        "terminal",
        "state.sqlite3",
        "logs?",
        "audit?",
    ):
        assert expected in found, found
    assert any(name.endswith(".ring") for name, _ in files(scene))
    assert "SIGABRT" in "\n".join(scene.appliance.output)
    assert len(scene.processes) >= 4
    assert "Fatal Python error" in scene.texts["logs?limit=5000"]
    assert "engine/core" in scene.texts["stacks"]
    assert any("/profiles/" in name for name, _ in files(scene))


def test_no_key_is_kept_or_shown_anywhere(scene: Scene):
    for key in scene.keys:
        assert places(scene, key) == [], key[:12]


def test_no_prompt_is_kept_or_shown_anywhere(scene: Scene):
    assert places(scene, PROMPT) == []


def test_no_process_leaves_its_memory_behind_when_it_crashes(scene: Scene):
    assert scene.appliance.process is not None
    pids = [scene.appliance.process.pid, *(child.pid for child in scene.appliance.children())]
    limits = [psutil.Process(pid).rlimit(psutil.RLIMIT_CORE)[0] for pid in pids]
    assert set(limits) <= {0, 1}


def test_content_that_is_allowed_is_in_traces_and_nowhere_else(scene: Scene):
    found = places(scene, ALLOWED)

    assert any("traces.sqlite3" in name for name in found)
    assert "otlp" in found
    assert all("traces.sqlite3" in name or name == "otlp" for name in found), found
    text = scene.appliance.admin(f"/admin/v1/traces/{scene.allowed_id}").text
    assert "gen_ai.input.messages" in text
    assert ALLOWED in text


def test_every_line_of_the_terminal_is_one_event(scene: Scene):
    marks = re.compile(r"^(\d{4}-\d\d-\d\dT\S+Z (debug|info|warning|error) |  \| |  |$)")
    lines = scene.appliance.output
    start = next(i for i, line in enumerate(lines) if line.startswith("ready in"))
    assert all(marks.match(line) for line in lines[start + 1 :])
    assert all(line.isprintable() for line in lines)


def test_the_audit_log_is_whole_after_all_that(scene: Scene):
    result = scene.appliance.cli("audit", "verify")
    assert result.returncode == 0, result.stderr
    statuses = {entry["status"] for entry in json.loads(scene.texts["audit?limit=1000"])["items"]}
    assert {200, 201, 202, 401, 404, 422} <= statuses
