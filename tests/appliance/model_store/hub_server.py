"""A hub on 127.0.0.1 that speaks what `huggingface_hub` needs, and fails on demand."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

FIRST, SECOND = "a" * 40, "b" * 40


@dataclass
class Repository:
    """Files by commit, and what branches and tags point at."""

    commits: dict[str, dict[str, bytes]]
    revisions: dict[str, str]
    gated: bool = False
    cuts: dict[str, list[int]] = field(default_factory=dict)
    """File: after how many bytes each of its next answers breaks off."""


@dataclass
class Hub:
    """A running hub."""

    url: str
    repositories: dict[str, Repository]
    tokens: set[str] = field(default_factory=set)
    """Authorizations that were sent."""
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and Range of every request."""
    is_down: bool = False


def files_of(directory: Path) -> dict[str, bytes]:
    """Take a model directory as the files of a commit."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@contextmanager
def serve_hub(repositories: dict[str, Repository]) -> Iterator[Hub]:
    """Serve until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}", repositories)
    server.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.hub, unquote(urlparse(self.path).path)
        hub.asked.append((self.command, path, self.headers.get("Range")))
        if "authorization" in self.headers:
            hub.tokens.add(self.headers["authorization"])
        refusal = self._route(path)
        if refusal is not None:
            self.send_response(refusal[0])
            self.send_header("X-Error-Code", refusal[1])
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _route(self, path: str) -> tuple[int, str] | None:
        """Answer, or return a status and code to refuse with."""
        hub = self.hub
        if hub.is_down:
            return 503, "Down"
        parts = path.strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if is_api else parts[:2])
        repository = hub.repositories.get(name)
        if repository is None:
            return 404, "RepoNotFound"
        revision = parts[5] if is_api else parts[3]
        commit = repository.revisions.get(revision, revision)
        if commit not in repository.commits:
            return 404, "RevisionNotFound"
        if is_api:
            self._tell(name, commit, repository.commits[commit])
        elif repository.gated and "authorization" not in self.headers:
            return 403, "GatedRepo"
        else:
            self._send_file(repository, commit, parts[4])
        return None

    def _tell(self, name: str, commit: str, files: dict[str, bytes]) -> None:
        siblings = [
            {"rfilename": file, "size": len(content), "blobId": "0"}
            for file, content in files.items()
        ]
        body = json.dumps({"id": name, "modelId": name, "sha": commit, "siblings": siblings})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def _send_file(self, repository: Repository, commit: str, file: str) -> None:
        content = repository.commits[commit][file]
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        cuts = repository.cuts.get(file)
        if cuts:
            self.wfile.write(content[start : start + cuts.pop(0)])
            self.close_connection = True
        else:
            self.wfile.write(content[start:])
