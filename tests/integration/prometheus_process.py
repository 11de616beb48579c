"""A real Prometheus and a real Alertmanager with the shipped configuration, for tests."""

import json
import math
import re
import shutil
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.integration.appliance_process import wait_until

OPS = Path(__file__).parents[2] / "ops"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Receiver:
    """Takes an Alertmanager's messages and keeps their alerts."""

    def __init__(self) -> None:
        alerts = self.alerts = list[dict[str, Any]]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                alerts.extend(json.loads(body)["alerts"])
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Watch:
    """Prometheus and Alertmanager of ops/prometheus; only ports, intervals and the key are changed.

    Args:
        directory: For their files.
        target: `host:port` of a control plane.
        key: That may read its metrics.
        receiver: Where alerts go.
    """

    def __init__(self, directory: Path, target: str, key: str, receiver: Receiver) -> None:
        self.target = target
        self._port, self._alert_port = free_port(), free_port()
        shutil.copytree(OPS / "prometheus", directory, dirs_exist_ok=True)
        (directory / "quarterdeck.token").write_text(key)
        self._configure_prometheus(directory / "prometheus.yml")
        self._configure_alertmanager(directory / "alertmanager.yml", receiver.url)
        self._http = httpx.Client(timeout=30)
        self._processes = [
            self._start(
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
                "--enable-feature=exemplar-storage",
            ),
            self._start(
                "prometheus-alertmanager",
                f"--config.file={directory / 'alertmanager.yml'}",
                f"--storage.path={directory / 'alerts'}",
                f"--web.listen-address=127.0.0.1:{self._alert_port}",
                "--cluster.listen-address=",
            ),
        ]
        self.started_s = time.time()  # noqa: TID251 (Prometheus speaks wall-clock time)
        wait_until(self._is_ready, 30, "prometheus answers")

    def _configure_prometheus(self, path: Path) -> None:
        text = path.read_text()
        for shipped, ours in (
            ("127.0.0.1:8001", self.target),
            ("127.0.0.1:9093", f"127.0.0.1:{self._alert_port}"),
            ("scrape_interval: 5s", "scrape_interval: 1s"),
            ("scrape_timeout: 4s", "scrape_timeout: 1s"),
            ("evaluation_interval: 5s", "evaluation_interval: 1s"),
        ):
            assert text.count(shipped) == 1, shipped
            text = text.replace(shipped, ours)
        path.write_text(text)

    @staticmethod
    def _configure_alertmanager(path: Path, url: str) -> None:
        config = yaml.safe_load(path.read_text())
        config["route"]["group_wait"] = "0s"
        for receiver in config["receivers"]:
            receiver["webhook_configs"] = [{"url": f"{url}{receiver['name']}"}]
        path.write_text(yaml.safe_dump(config))

    @staticmethod
    def _start(program: str, *arguments: str) -> "subprocess.Popen[bytes]":
        binary = shutil.which(program)
        assert binary, f"install Debian's {program} (see .ci/run)"
        return subprocess.Popen(
            [binary, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _is_ready(self) -> bool:
        try:
            return self._http.get(f"http://127.0.0.1:{self._port}/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path: str, **params: Any) -> Any:
        """Ask Prometheus' API."""
        answer = self._http.get(f"http://127.0.0.1:{self._port}/api/v1/{path}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def finite_samples(self, expression: str) -> int:
        """How many finite samples an expression has had since the start, one a second."""
        end_s = time.time()  # noqa: TID251
        rows = self.get(
            "query_range", query=expression, start=self.started_s, end=end_s, step="1s"
        )["result"]
        return sum(math.isfinite(float(value)) for row in rows for _, value in row["values"])

    def scrapes(self) -> int:
        """How often the appliance has answered."""
        return self.finite_samples('up{job="quarterdeck"} == 1')

    def filled_in(self, expression: str) -> str:
        """A panel's expression as Grafana would send it."""
        text = expression.replace("$__rate_interval", "4s").replace("$instance", self.target)
        return re.sub(r"\$(engine|model|gateway|process)\b", ".*", text)

    def exemplars(self, expression: str) -> list[dict[str, Any]]:
        """Exemplars of all series of an expression since the start."""
        found = self.get(
            "query_exemplars",
            query=expression,
            start=self.started_s,
            end=time.time(),  # noqa: TID251
        )
        return [exemplar for series in found for exemplar in series["exemplars"]]

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(20)
        self._http.close()
