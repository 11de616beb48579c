"""The engine process with torch and a tiny model, as the supervisor starts it."""

from pathlib import Path

import pytest

from engine.wire.calls import DumpState, Ping, Sleep, Wake
from engine.wire.messages import EngineHello, EngineProgress, EngineReady, FinishReason
from tests.engine.core.engine_process import engine_station, finish

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def test_a_tiny_model_loads_streams_sleeps_and_answers_the_same_after_the_wake(
    run_dir: Path, tiny_model_path: Path
):
    options = {"dtype": "float32", "kv_cache_bytes": 16 << 20, "num_threads": 1}
    async with engine_station(
        run_dir, model=str(tiny_model_path), module="engine", **options
    ) as station:
        facts = await station.wait_for(EngineReady)
        times = {type(message): at for at, message in reversed(station.heard)}
        assert times[EngineHello] < times[EngineProgress] < times[EngineReady]
        phases = [phase.name for phase in facts.phases]
        assert phases[0] == "import"
        assert "weights" in phases

        prompts = [list(range(10, 10 + length)) for length in (3, 40, 7)]
        collectors = [
            station.add(f"r{number}", prompt, ignore_eos=True, max_tokens=12)
            for number, prompt in enumerate(prompts)
        ]
        before = [(await finish(collector))[0] for collector in collectors]
        alone, last = await finish(station.add("alone", prompts[1], ignore_eos=True, max_tokens=12))
        assert alone == before[1], "who shares the batch changes nothing"
        assert last.finish_reason is FinishReason.LENGTH
        assert (await station.call(Ping(deep=True))).token_id is not None

        for level in (1, 2):
            report = await station.call(Sleep(level=level))
            assert report.freed_bytes > 0
            woke = await station.call(Wake(), timeout_s=20)
            assert woke.canary_ok
            again, _ = await finish(
                station.add(f"again-{level}", prompts[1], ignore_eos=True, max_tokens=12)
            )
            assert again == alone

        state = await station.call(DumpState())
        assert state.free_blocks == state.num_blocks


async def test_a_model_that_is_not_there_is_a_configuration_error(run_dir: Path):
    async with engine_station(run_dir, model=str(run_dir / "nothing"), module="engine") as station:
        assert await station.wait_exit() == 78
