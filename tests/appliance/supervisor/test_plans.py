"""From settings to the desired fleet."""

from pathlib import Path

import pytest

from appliance.config.settings import EngineSettings, Settings
from appliance.model_store.packs import ModelStoreError
from appliance.supervisor.fleet import FleetPlan
from appliance.supervisor.listeners import Listeners, bind_data_plane
from appliance.supervisor.plans import plan_fleet, resolve_models
from appliance.supervisor.serve import serve

RUN = Path("/tmp/run")


def plan(settings: Settings) -> FleetPlan:
    listeners = Listeners()
    bind_data_plane(listeners, "127.0.0.1", 0, settings.gateways)
    try:
        return plan_fleet(settings, resolve_models(settings), RUN, listeners)
    finally:
        listeners.close()


def test_every_engine_knows_every_client_and_the_supervisor_is_the_first(tiny_model_path: Path):
    fleet = plan(Settings(model=str(tiny_model_path), num_engines=2, gateways=2))

    assert [engine.engine_id for engine in fleet.engines] == ["e0", "e1"]
    for engine in fleet.engines:
        names = [client.name for client in engine.config.clients]
        assert names == ["supervisor", "gateway-0", "gateway-1"]
        assert engine.config.clients[1].input == "ipc:///tmp/run/gateway-0.in"
        assert engine.config.model == str(tiny_model_path)
        assert engine.served_names == ("tiny",)
    assert len({gateway.config.tcp_fd for gateway in fleet.gateways}) == 2


def test_an_engines_own_settings_win(tiny_model_path: Path):
    own = EngineSettings(device="cuda:1", dtype="float32", served_model_name=["a", "b"])
    settings = Settings(
        model=str(tiny_model_path),
        engines=[own, EngineSettings()],
        device="cuda:0",
        max_model_len=64,
        served_model_name=["shared"],
    )
    first, second = plan(settings).engines

    assert (first.config.device, first.config.dtype) == ("cuda:1", "float32")
    assert first.config.max_model_len == 64
    assert (first.served_names, first.config.model_name) == (("a", "b"), "a")
    assert (second.config.device, second.config.dtype) == ("cuda:0", None)
    assert second.served_names == ("shared",)


def test_formats_kernels_and_the_weight_cache_reach_each_engine(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    own = EngineSettings(quantization="w4", kernels="cpu:avx2", num_threads=1)
    settings = Settings(
        model=str(tiny_model_path),
        engines=[own, EngineSettings()],
        quantization="int8",
        kv_cache_dtype="int8",
        num_threads=2,
        weight_cache_bytes=5,
    )
    first, second = (engine.config for engine in plan(settings).engines)

    assert (first.quantization, first.kernels, first.num_threads) == ("w4", "cpu:avx2", 1)
    assert (second.quantization, second.kernels, second.num_threads) == ("int8", "auto", 2)
    assert first.kv_cache_dtype == second.kv_cache_dtype == "int8"
    assert first.weight_cache_dir == str(tmp_path / "quarterdeck" / "weights")
    assert first.weight_cache_bytes == 5
    off = Settings(model=str(tiny_model_path), weight_cache="off")
    assert plan(off).engines[0].config.weight_cache_dir is None


def test_the_shared_names_are_not_for_an_engine_with_another_model(tiny_model_path: Path):
    other = EngineSettings(model=str(tiny_model_path))
    settings = Settings(model=str(tiny_model_path), engines=[other], served_model_name=["shared"])

    assert plan(settings).engines[0].served_names == ("tiny",)


def test_limits_are_divided_among_the_gateways(tiny_model_path: Path):
    settings = Settings(
        model=str(tiny_model_path), gateways=4, max_queued=2, requests_per_minute=100
    )
    limits = plan(settings).limits

    assert (limits.max_queued, limits.requests_per_minute) == (1, 25)


def test_a_model_that_is_not_there_is_said_before_anything_starts():
    with pytest.raises(ModelStoreError, match="no model"):
        resolve_models(Settings(model="/nowhere/at/all"))


@pytest.mark.parametrize("plane", ["host", "admin_host"])
def test_no_auth_is_for_loopback_only(plane: str, capsys: pytest.CaptureFixture[str]):
    settings = Settings(no_auth=True, port=0, admin_port=0, **{plane: "192.0.2.1"})

    assert serve(settings, {}) == 1
    assert "--no-auth works on loopback addresses only" in capsys.readouterr().err


def test_a_certificate_that_cannot_be_used_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "cert.pem").write_text("rubbish")
    settings = Settings(
        port=0, admin_port=0, tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "cert.pem"
    )

    assert serve(settings, {}) == 1
    assert "cannot use" in capsys.readouterr().err
