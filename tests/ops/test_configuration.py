"""The configuration of Prometheus, Alertmanager, Grafana and the collector fits together."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from ops.grafana.board import TRACES_URL
from tests.ops.texts import OPS

COMPOSE = OPS / "compose"
PROVISIONING = OPS / "grafana" / "provisioning"


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def services() -> dict[str, Any]:
    return read(COMPOSE / "compose.yml")["services"]


def datasources() -> dict[str, Any]:
    found = read(PROVISIONING / "datasources" / "quarterdeck.yml")["datasources"]
    return {source["uid"]: source for source in found}


def test_promtool_accepts_the_configuration_as_the_quickstart_uses_it(tmp_path: Path):
    for file in (OPS / "prometheus").glob("*.yml"):
        shutil.copy(file, tmp_path)
    (tmp_path / "quarterdeck.token").write_text("secret")

    checked = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "2 rule files found" in checked.stdout


def test_prometheus_scrapes_the_control_plane_with_a_token_beside_its_configuration():
    config = read(OPS / "prometheus" / "prometheus.yml")
    (job,) = config["scrape_configs"]

    assert job["authorization"]["credentials_file"] == "quarterdeck.token"
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8001"]}]
    assert config["global"]["scrape_interval"] == "5s"
    assert set(config["rule_files"]) == {p.name for p in (OPS / "prometheus").glob("*.rules.yml")}
    ignored = (OPS.parent / ".gitignore").read_text().splitlines()
    assert "ops/prometheus/quarterdeck.token" in ignored


def test_amtool_accepts_the_alertmanagers_configuration():
    path = OPS / "prometheus" / "alertmanager.yml"
    checked = subprocess.run(
        ["amtool", "check-config", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_pages_and_tickets_go_to_receivers_of_their_own():
    routed = subprocess.run(
        [
            "amtool", "config", "routes", "test",
            f"--config.file={OPS / 'prometheus' / 'alertmanager.yml'}", "severity=page",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )  # fmt: skip
    assert routed.stdout.strip() == "pages"


def test_what_the_containers_mount_exists():
    volumes = set(read(COMPOSE / "compose.yml")["volumes"])
    for name, service in services().items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source in volumes:
                continue
            assert (COMPOSE / source).exists(), f"{name}: {source}"
            assert volume.endswith(":ro"), f"{name} writes into the repository"


def test_images_are_pinned_and_nothing_listens_beyond_loopback():
    for name, service in services().items():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
        assert service["network_mode"] == "host"
        assert service["read_only"]
        assert "ports" not in service
    prometheus, alertmanager = services()["prometheus"], services()["alertmanager"]
    assert "--web.listen-address=127.0.0.1:9090" in prometheus["command"]
    assert "--enable-feature=exemplar-storage" in prometheus["command"]
    assert "--web.listen-address=127.0.0.1:9093" in alertmanager["command"]
    assert services()["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    for file in ("collector.yml", "jaeger.yml"):
        for address in re.findall(r"endpoint: (\S+):\d+", (COMPOSE / file).read_text()):
            assert address == "127.0.0.1", file


def test_every_part_finds_the_next_one():
    collector, jaeger = read(COMPOSE / "collector.yml"), read(COMPOSE / "jaeger.yml")
    taken = jaeger["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    assert collector["exporters"]["otlp/jaeger"]["endpoint"] == taken
    offered = collector["receivers"]["otlp"]["protocols"]
    assert offered["http"]["endpoint"] == "127.0.0.1:4318"
    assert offered["grpc"]["endpoint"] == "127.0.0.1:4317"
    page = "http://" + jaeger["extensions"]["jaeger_query"]["http"]["endpoint"]
    assert page == TRACES_URL == datasources()["quarterdeck-jaeger"]["url"]
    alerting = read(OPS / "prometheus" / "prometheus.yml")["alerting"]["alertmanagers"]
    assert alerting == [{"static_configs": [{"targets": ["127.0.0.1:9093"]}]}]
    for document in (collector, jaeger):
        for pipeline in document["service"]["pipelines"].values():
            for part in ("receivers", "processors", "exporters"):
                assert set(pipeline[part]) <= set(document[part])


def test_an_exemplar_leads_to_its_trace():
    prometheus = datasources()["quarterdeck-prometheus"]
    assert prometheus["isDefault"]
    here, outside = prometheus["jsonData"]["exemplarTraceIdDestinations"]
    assert here["name"] == outside["name"] == "trace_id"
    assert here["datasourceUid"] in datasources()
    # Grafana expands variables when it reads the file: `$$` stays a `$`
    assert outside["url"] == TRACES_URL + "/trace/$${__value.raw}"


def test_grafana_loads_the_dashboards_from_where_they_are_mounted():
    (provider,) = read(PROVISIONING / "dashboards" / "quarterdeck.yml")["providers"]
    path = provider["options"]["path"]
    assert f"../grafana/json:{path}:ro" in services()["grafana"]["volumes"]
    home = services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (OPS / "grafana" / "json" / Path(home).name).exists()
    assert str(Path(home).parent) == path
