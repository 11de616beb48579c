"""An appliance that exports over gRPC: live switch, status, and children that start beside it."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.appliance.telemetry.export.collectors import GrpcCollector, grpc_collector
from tests.integration.appliance_process import ApplianceProcess, wait_until

pytestmark = pytest.mark.process

SECRET = "tok-CANARY-4317"


@pytest.fixture(scope="module")
def collector() -> Iterator[GrpcCollector]:
    with grpc_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def appliance(
    collector: GrpcCollector, tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApplianceProcess]:
    appliance = ApplianceProcess(
        tmp_path_factory.mktemp("g"),
        str(tiny_model_path),
        "--dtype", "float32", "--drain-s", "5",
        "--otlp-endpoint", collector.endpoint, "--otlp-protocol", "grpc",
        env={"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {SECRET}"},
    )  # fmt: skip
    yield appliance.start()
    appliance.stop()


def steps_of(collector: GrpcCollector) -> int:
    return sum(span.name == "engine.step" for span in collector.received.spans)


def export_of(appliance: ApplianceProcess) -> dict:
    return appliance.admin("/admin/v1/telemetry").json()["collector"]


def test_spans_of_a_request_arrive_with_the_collectors_key(
    appliance: ApplianceProcess, collector: GrpcCollector
):
    assert appliance.chat("hello").status_code == 200
    wait_until(lambda: steps_of(collector), 10, "spans")

    assert collector.received.headers[0]["authorization"] == f"Bearer {SECRET}"


@pytest.mark.prove
def test_an_engine_starts_beside_grpcs_threads(
    appliance: ApplianceProcess, collector: GrpcCollector
):
    pid = appliance.engine()["pid"]
    psutil.Process(pid).kill()
    wait_until(lambda: appliance.engine()["pid"] not in {pid, None}, 30, "another engine")
    appliance.wait_ready()
    steps = steps_of(collector)
    assert appliance.chat("hello again").status_code == 200
    wait_until(lambda: steps_of(collector) > steps, 10, "spans of the new engine")


def test_the_collectors_key_is_nowhere_else(appliance: ApplianceProcess):
    status = export_of(appliance)

    assert (status["protocol"], status["state"]) == ("grpc", "works")
    assert SECRET not in str(status)
    assert SECRET not in "\n".join(appliance.output)
    for child in appliance.children():
        assert SECRET not in str(child.environ())


def test_export_stops_and_goes_on_while_it_runs(
    appliance: ApplianceProcess, collector: GrpcCollector
):
    def change(export: bool) -> None:
        answer = appliance.admin("/admin/v1/telemetry", "PATCH", json={"export": export})
        assert answer.json()["export"] is export, answer.text

    change(False)
    wait_until(lambda: export_of(appliance)["queued"] == 0, 10, "the queue's end")
    before = export_of(appliance)["exported"]
    assert appliance.chat("not exported").status_code == 200
    assert export_of(appliance)["state"] == "idle"
    change(True)
    assert appliance.chat("exported").status_code == 200
    wait_until(lambda: export_of(appliance)["exported"] > before, 10, "spans")
    assert len(collector.received.spans) >= export_of(appliance)["exported"]
