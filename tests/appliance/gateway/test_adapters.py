"""Adapter names are model names: listed, accepted, sent to engines that have them, counted."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from appliance.control_link.messages import AdapterRoute, FleetState, Limits
from appliance.gateway.fleet import Asleep, Dispatch, Fleet, Hold, Unavailable
from engine.wire.calls import LoadAdapter
from tests.appliance.gateway.fake_supervisor import MODEL, a_route
from tests.appliance.gateway.stand import CHAT, Stand, running
from tests.appliance.gateway.test_lifecycle import until

pytestmark = pytest.mark.anyio

SQL = AdapterRoute(name="sql", model=MODEL, content_hash="ab")


def give(stand: Stand, tmp_path: Path, engine_id: str = "e0") -> None:
    """Load the adapter into the fake engine, as the supervisor's call would."""
    (tmp_path / "sql").mkdir(exist_ok=True)
    stand.engines[engine_id].adapters.answer(LoadAdapter(name="sql", path=str(tmp_path / "sql")))


@pytest.fixture
async def stand(run_dir: Path, tiny_model_path: Path, tmp_path: Path) -> AsyncIterator[Stand]:
    async with running(run_dir, tiny_model_path) as opened:
        give(opened, tmp_path)
        opened.supervisor.adapters = (SQL,)
        await opened.supervisor.moved(adapters=("sql",))
        yield opened


async def test_an_adapter_is_listed_with_its_base(stand: Stand):
    sdk = await stand.sdk()
    listed = {model.id: model for model in (await sdk.models.list()).data}
    one = await sdk.models.retrieve("sql")

    assert list(listed) == [MODEL, "alias", "sql"]
    assert (one.root, one.parent) == (MODEL, MODEL)  # type: ignore[attr-defined]
    assert listed[MODEL].parent is None  # type: ignore[attr-defined]
    assert listed["sql"].max_model_len == listed[MODEL].max_model_len  # type: ignore[attr-defined]


async def test_chat_and_completions_reach_the_engine_with_the_adapter(stand: Stand):
    sdk = await stand.sdk()
    messages = CHAT["messages"]
    chat = await sdk.chat.completions.create(model="sql", messages=messages, max_tokens=3)
    text = await sdk.completions.create(model="sql", prompt="The capital", max_tokens=3)
    base = await sdk.completions.create(model=MODEL, prompt="The capital", max_tokens=3)
    stream = await sdk.chat.completions.create(
        model="sql", messages=messages, max_tokens=3, stream=True
    )
    chunks = [chunk async for chunk in stream]

    assert (chat.model, text.model, base.model) == ("sql", "sql", MODEL)
    assert {chunk.model for chunk in chunks} == {"sql"}
    assert [sent.adapter for sent in stand.engine.received] == ["sql", "sql", None, "sql"]


async def test_records_name_the_adapter_and_so_does_one_metric_of_ended_requests(stand: Stand):
    http = await stand.http()
    answer = await http.post("/v1/chat/completions", json={**CHAT, "model": "sql", "max_tokens": 2})
    record = await stand.supervisor.record(answer.headers["x-request-id"].removeprefix("req-"))
    await stand.supervisor.totals(ended=1)
    accounts = [body.snapshot for body in stand.supervisor.said if hasattr(body, "snapshot")][-1]
    by_metric = {sample.name: dict(sample.labels).get("model") for sample in accounts.counters}

    assert record.model == "sql"
    assert by_metric.pop("quarterdeck_model_requests_total") == "sql"
    assert set(by_metric.values()) == {MODEL, None}


@pytest.mark.parametrize("name", ["SQL", "sql2", "sql/", "tiny:sql", "../sql"])
async def test_another_name_is_no_model(stand: Stand, name: str):
    http = await stand.http()
    answer = await http.post("/v1/chat/completions", json={**CHAT, "model": name})

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert stand.engine.received == []


async def test_an_adapter_that_is_gone_is_no_model_any_more(stand: Stand):
    sdk = await stand.sdk()
    stand.supervisor.adapters = ()
    await stand.supervisor.moved(adapters=())

    with pytest.raises(openai.NotFoundError):
        await sdk.completions.create(model="sql", prompt="x", max_tokens=1)
    with pytest.raises(openai.NotFoundError):
        await sdk.models.retrieve("sql")


async def test_an_adapter_that_the_engine_has_lost_is_a_404_about_the_model(stand: Stand):
    stand.engine.adapters.held.clear()
    http = await stand.http()
    answer = await http.post("/v1/chat/completions", json={**CHAT, "model": "sql"})

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (404, "model")


async def test_a_request_is_held_until_a_restarted_engine_has_the_adapter_again(
    stand: Stand, tmp_path: Path
):
    http = await stand.http()
    await stand.kill_engine()
    engine = await stand.restart_engine()
    await stand.supervisor.moved(adapters=())
    body = {**CHAT, "model": "sql", "max_tokens": 2}
    base = {**CHAT, "max_tokens": 2}
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(http.post("/v1/chat/completions", json=body))
        assert (await http.post("/v1/chat/completions", json=base)).status_code == 200
        assert [sent.adapter for sent in engine.received] == [None]
        give(stand, tmp_path)
        await stand.supervisor.moved(adapters=("sql",))

    assert asked.result().status_code == 200
    assert [sent.adapter for sent in engine.received] == [None, "sql"]


async def test_a_held_request_whose_adapter_is_unloaded_gets_the_answer_of_a_later_one(
    stand: Stand,
):
    http = await stand.http()
    await stand.supervisor.moved(adapters=())  # the engine is about to load it
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(
            http.post("/v1/chat/completions", json={**CHAT, "model": "sql", "max_tokens": 2})
        )
        await until(lambda: any(r.journey.is_held for r in stand.gateway.plane.live.values()))
        stand.supervisor.adapters = ()
        await stand.supervisor.moved(adapters=())
    later = await http.post("/v1/chat/completions", json={**CHAT, "model": "sql"})

    assert asked.result().status_code == later.status_code == 404
    assert asked.result().json() == later.json()


async def test_an_adapter_that_no_engine_can_load_is_said_to_be_unavailable(stand: Stand):
    http = await stand.http()
    stand.supervisor.adapters = (
        AdapterRoute(name="sql", model=MODEL, content_hash="ab", failed_on=("e0",)),
    )
    await stand.supervisor.moved(adapters=())
    answer = await http.post("/v1/chat/completions", json={**CHAT, "model": "sql"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_overloaded")


async def test_tokenize_knows_the_adapters_tokenizer(stand: Stand):
    http: httpx.AsyncClient = await stand.http()
    own = await http.post("/tokenize", json={"model": "sql", "prompt": "The capital"})
    base = await http.post("/tokenize", json={"model": MODEL, "prompt": "The capital"})

    assert own.json() == base.json()


def a_fleet(tmp_path: Path, *, failed_on: tuple[str, ...] = (), **engines: str) -> Fleet:
    """Engines in the given states; those named `has_...` have the adapter."""
    supervisor_state = {
        name.removeprefix("has_"): a_route(
            tmp_path,
            name.removeprefix("has_"),
            state=state,
            adapters=("sql",) if name.startswith("has_") else (),
        )
        for name, state in engines.items()
    }
    fleet = Fleet()
    fleet.apply(
        FleetState(
            sequence=1,
            engines=tuple(supervisor_state.values()),
            keys=(),
            limits=Limits(max_queued=1, requests_per_minute=1, tokens_per_minute=1, hold_s=1),
            on_asleep="wake",
            draining=False,
            auth_required=False,
            adapters=(
                AdapterRoute(name="sql", model=MODEL, content_hash="a", failed_on=failed_on),
            ),
        )
    )
    return fleet


def test_only_engines_that_have_the_adapter_get_its_requests(tmp_path: Path):
    fleet = a_fleet(tmp_path, e0="ready", has_e1="ready")
    fleet.load["e1"] = 50

    chosen = fleet.choose("sql")
    assert isinstance(chosen, Dispatch)
    assert chosen.route.engine_id == "e1"
    chosen = fleet.choose(MODEL)
    assert isinstance(chosen, Dispatch)
    assert chosen.route.engine_id == "e0"


def test_an_engine_that_loads_it_is_waited_for_and_one_that_sleeps_is_woken(tmp_path: Path):
    assert isinstance(a_fleet(tmp_path, e0="ready", e1="asleep").choose("sql"), Hold)
    assert isinstance(a_fleet(tmp_path, e0="asleep").choose("sql"), Asleep)
    assert isinstance(a_fleet(tmp_path, e0="ready", failed_on=("e0",)).choose("sql"), Unavailable)
    failed = a_fleet(tmp_path, e0="ready", e1="starting", failed_on=("e0",)).choose("sql")
    assert isinstance(failed, Hold)
    assert failed.route.engine_id == "e1"


def test_a_name_that_is_no_adapter_is_its_own_base(tmp_path: Path):
    fleet = a_fleet(tmp_path, has_e0="ready")

    assert (fleet.base_of("sql"), fleet.base_of(MODEL), fleet.base_of("x")) == (MODEL, MODEL, "x")
    assert list(fleet.models()) == [MODEL, "alias", "sql"]
