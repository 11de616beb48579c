"""The engine as a process: real sockets, threads and signals; the model is a hash."""

import asyncio
import itertools
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from engine.clock import now_ns
from engine.config import EngineConfig
from engine.wire.calls import DumpState, Ping, Sleep, Wake
from engine.wire.codec import ENGINE_CODEC
from engine.wire.header import new_context
from engine.wire.hops import HopReceived, HopSent
from engine.wire.messages import (
    TRACED,
    AbortReason,
    AddRequest,
    EngineDead,
    EngineHello,
    EngineProgress,
    EngineReady,
    EngineRecords,
    EngineStats,
    FinishReason,
    Heartbeat,
    SamplingParams,
    UtilityCall,
)
from engine.wire.sockets import HeaderMaker, bind_router
from tests.engine.core.engine_process import (
    ROOT,
    Station,
    endpoint,
    engine_station,
    finish,
)
from tests.engine.core.kv_runner import FATAL, POISON, SLOW, WEIGHTS_BYTES, oracle

pytestmark = [pytest.mark.anyio, pytest.mark.process]

GATEWAY = "gateway-0"


async def ready(station: Station) -> EngineReady:
    return await station.wait_for(EngineReady)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def wait_gone(pid: int, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while is_alive(pid):
            await asyncio.sleep(0.02)


class RawClient:
    """A second client of the engine that speaks frames, and reads only when told to."""

    def __init__(self, run_dir: Path, name: str = GATEWAY) -> None:
        self.context = zmq.asyncio.Context()
        self.router: Any = bind_router(self.context, endpoint(run_dir, name).input)
        self.pull: Any = self.context.socket(zmq.PULL)
        self.pull.setsockopt(zmq.RCVHWM, 1)
        self.pull.bind(endpoint(run_dir, name).output)
        self.headers = HeaderMaker(name, 1)
        self.identity = b""

    async def __aenter__(self) -> "RawClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.router.close(0)
        self.pull.close(0)
        self.context.term()

    async def meet(self) -> None:
        """Wait for the engine's first, empty message."""
        async with asyncio.timeout(20):
            self.identity, _ = await self.router.recv_multipart()

    async def send(self, *frames: bytes) -> None:
        await self.router.send_multipart([self.identity, *frames])

    async def send_body(self, body: Any, engine_epoch: int = 3) -> None:
        header = self.headers.make(new_context(), engine_epoch)
        await self.send(*ENGINE_CODEC.encode(header, body))


def an_add(name: str, prompt: list[int], **options: object) -> AddRequest:
    sampling = SamplingParams(**{"max_tokens": 8, "temperature": 0.0, **options})
    return AddRequest(
        request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling, arrival_ns=now_ns()
    )


# ------------------------------------------------------------ start


def test_nothing_of_the_process_but_the_runner_imports_torch():
    code = "import sys, engine.__main__; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


async def test_hello_comes_first_then_progress_then_ready(run_dir: Path):
    async with engine_station(run_dir) as station:
        facts = await ready(station)

        kinds = [type(message) for _, message in station.heard]
        hello = station.all_of(EngineHello)[0]
        assert kinds[0] is EngineHello
        before_ready = set(kinds[: kinds.index(EngineReady)])
        assert before_ready == {EngineHello, EngineProgress, Heartbeat}
        assert (hello.engine_id, hello.epoch, hello.pid) == ("e0", 3, station.process.pid)
        phases = [message.phase for message in station.all_of(EngineProgress)]
        assert list(dict.fromkeys(phases)) == ["import", "weights"]
        assert (facts.num_blocks, facts.block_size, facts.max_model_len) == (256, 16, 2000)
        assert [phase.name for phase in facts.phases] == ["import", "weights"]
        assert station.heard[0][0] - station.spawned_ns < 2e9


async def test_a_configuration_error_is_told_and_has_its_own_exit_code(run_dir: Path):
    async with engine_station(run_dir, model="config-error") as station:
        dead = await station.wait_for(EngineDead)

        assert (dead.reason, dead.detail) == ("config_error", "no such model")
        assert await station.wait_exit() == 78


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        (
            {"max_num_seqs": 9, "max_num_batched_tokens": 8},
            "max_num_batched_tokens is 8: it must be at least max_num_seqs (9), "
            "for each running request takes one in a step",
        ),
    ],
)
async def test_a_configuration_that_no_engine_can_run_with_is_refused_by_name(
    run_dir: Path, fields: dict[str, int], detail: str
):
    async with engine_station(run_dir, **fields) as station:
        dead = await station.wait_for(EngineDead)

        assert (dead.reason, dead.detail) == ("config_error", detail)
        assert await station.wait_exit() == 78


async def test_a_crash_while_loading_is_told_with_its_last_line(run_dir: Path):
    async with engine_station(run_dir, model="crash-at-load") as station:
        dead = await station.wait_for(EngineDead)

        assert (dead.reason, dead.detail) == ("internal_error", "RuntimeError: no such luck")
        assert await station.wait_exit() == 1


def test_a_configuration_that_is_none_is_a_configuration_error():
    read, write = os.pipe()
    os.write(write, b"{}")
    os.close(write)
    command = [sys.executable, "-m", "engine", "--config-fd", str(read)]

    result = subprocess.run(
        command, pass_fds=(read,), cwd=ROOT, check=False, capture_output=True, text=True
    )

    os.close(read)
    assert result.returncode == 78
    assert "no usable configuration" in result.stderr


# ------------------------------------------------------------ serving


async def test_eight_requests_at_once_each_get_their_own_tokens(run_dir: Path):
    async with engine_station(run_dir) as station:
        await ready(station)
        prompts = [[number, number + 1, number + 2] for number in range(8)]

        collectors = [
            station.add(f"r{number}", prompt, max_tokens=30)
            for number, prompt in enumerate(prompts)
        ]
        results = [await finish(collector) for collector in collectors]

        assert [tokens for tokens, _ in results] == [oracle(prompt, 30) for prompt in prompts]
        assert {last.finish_reason for _, last in results} == {FinishReason.LENGTH}


async def test_requests_sent_while_the_engine_loads_are_served(run_dir: Path):
    async with engine_station(run_dir) as station:
        assert await station.client.wait_reachable("e0", 20)

        tokens, _ = await finish(station.add("early", [1, 2]))

        assert tokens == oracle([1, 2], 8)


async def test_an_abort_ends_a_request_within_a_step(run_dir: Path):
    async with engine_station(run_dir) as station:
        await ready(station)
        collector = station.add("slow", [SLOW], max_tokens=500)
        await collector.get()

        sent_ns = now_ns()
        station.client.abort("e0", ("slow",), AbortReason.CLIENT_DISCONNECTED, new_context())
        _, last = await finish(collector)

        assert last.finish_reason is FinishReason.ABORT
        assert last.timeline.finished_ns - sent_ns < 100_000_000
        state = await station.call(DumpState())
        assert state.free_blocks == state.num_blocks
        assert state.step == last.timeline.last_step


async def test_a_request_that_makes_the_model_raise_fails_alone(run_dir: Path):
    async with engine_station(run_dir) as station:
        await ready(station)
        good = station.add("good", [1, 2], max_tokens=50)
        bad = station.add("bad", [POISON])

        _, last = await finish(bad)
        tokens, _ = await finish(good)

        assert last.error.code == "internal_error"
        assert tokens == oracle([1, 2], 50)


async def test_sleep_and_wake_over_the_wire(run_dir: Path):
    async with engine_station(run_dir) as station:
        await ready(station)

        await station.wait_for(EngineStats)
        slept = await station.call(Sleep(level=2))
        await station.wait_for(EngineStats, 2)  # of the change
        _, rejected = await finish(station.add("asleep", [1]))
        woke = await station.call(Wake())
        tokens, _ = await finish(station.add("awake", [1]))

        assert slept.freed_bytes == WEIGHTS_BYTES
        assert rejected.finish_reason is FinishReason.REJECTED
        assert woke.canary_ok
        assert tokens == oracle([1], 8)
        levels = [stats.sleep_level for stats in station.all_of(EngineStats)]
        assert 2 in levels
        phases = [beat.phase for beat in station.all_of(Heartbeat)]
        assert phases.index("sleep") < phases.index("wake")


async def test_the_loop_beats_while_idle_and_while_busy(run_dir: Path):
    async with engine_station(run_dir, heartbeat_s=0.1) as station:
        await ready(station)
        await station.wait_for(Heartbeat, 4)
        await finish(station.add("busy", [SLOW], max_tokens=25))  # half a second

        beats = [(at, beat) for at, beat in station.heard if isinstance(beat, Heartbeat)]
        gaps_ns = [later[0] - earlier[0] for earlier, later in itertools.pairwise(beats)]
        assert max(gaps_ns) < 400_000_000
        assert {"idle", "step"} <= {beat.phase for _, beat in beats}
        assert beats[-1][1].step > beats[0][1].step


async def test_stats_add_up(run_dir: Path):
    async with engine_station(run_dir) as station:
        await ready(station)
        await finish(station.add("a", [1, 2, 3]))
        await finish(station.add("long", [1] * 2000))

        while (stats := station.all_of(EngineStats)[-1]).finished.get("error", 0) < 1:
            await station.wait_for(EngineStats, len(station.all_of(EngineStats)) + 1)

        assert stats.finished == {"length": 1, "error": 1}
        assert (stats.prompt_tokens, stats.generation_tokens) == (3, 8)
        assert stats.received == {"AddRequest": 2}
        assert stats.resident_bytes > 0


async def test_every_traced_message_has_both_halves_and_matches_the_sockets_counts(run_dir: Path):
    async with engine_station(run_dir) as station:
        await ready(station)
        collectors = [station.add(f"r{number}", [number], max_tokens=20) for number in range(6)]
        station.client.abort("e0", ("r0", "r1"), AbortReason.OPERATOR, new_context())
        for collector in collectors:
            await finish(collector)
        await station.call(Ping())
        await station.call(DumpState())
        batches = len(station.all_of(EngineRecords))
        await station.wait_for(EngineRecords, batches + 1)  # what they did is told by now

        hops = [*station.hops, *station.engine_hops()]
        names = {kind.__name__ for kind in TRACED}
        sent = [hop for hop in hops if isinstance(hop, HopSent) and hop.message in names]
        received = [hop for hop in hops if isinstance(hop, HopReceived) and hop.message in names]
        key = lambda hop: (hop.sender, hop.sender_epoch, hop.sequence)  # noqa: E731
        assert Counter(map(key, sent)) == Counter(map(key, received))
        assert all(hop.outcome == "ok" for hop in received)
        counted = {
            name: count for name, count in station.client.counts.sent.items() if name in names
        } | {name: count for name, count in station.client.counts.received.items() if name in names}
        assert Counter(hop.message for hop in sent) == counted
        spans = {hop.span_id for hop in sent}
        assert len(spans) == len(sent)
        replies = [hop for hop in sent if hop.message == "UtilityReply"]
        calls = {hop.span_id for hop in sent if hop.message == "UtilityCall"}
        assert {hop.parent_id for hop in replies} == calls
        assert {hop.call for hop in replies} == {"Ping", "DumpState"}


# ------------------------------------------------------------ bad input


async def test_junk_pickles_and_old_epochs_are_dropped_and_counted(run_dir: Path):
    async with (
        RawClient(run_dir) as raw,
        engine_station(run_dir, more_clients=(GATEWAY,)) as station,
    ):
        await ready(station)
        await raw.meet()
        stream = station.add("bystander", [1, 2], max_tokens=200)
        good = ENGINE_CODEC.encode(raw.headers.make(new_context(), 3), an_add("x", [1]))
        deep = b"\x91" * 20_000 + b"\x00"
        junk = [
            [b""],
            [b"", b"", b""],
            [os.urandom(1 << 20)],
            [b"\x00", os.urandom(50), os.urandom(50)],
            [good[0], good[1], good[2][:-3]],
            [good[0], good[1], pickle.dumps({"a": 1})],
            [b"\x7f", good[1], good[2]],
            [b"\x10", good[1], good[2]],
            [good[0], good[1], deep],
            [good[0], deep, good[2]],
            [b"\x00\x01", good[1], good[2]],
        ]
        for frames in junk:
            await raw.send(*frames)
        forged = HeaderMaker("supervisor", 1).make(new_context(), 3)
        await raw.send(*ENGINE_CODEC.encode(forged, an_add("forged", [1])))
        await raw.send_body(an_add("old", [1]), engine_epoch=2)
        await raw.send_body(an_add("future", [1]), engine_epoch=4)
        call = UtilityCall(call_id="c", deadline_ns=now_ns() + 10**10, call=DumpState())
        await raw.send_body(call)

        tokens, _ = await finish(stream)
        while station.all_of(EngineStats)[-1].received.get("UtilityCall", 0) < 1:
            await station.wait_for(EngineStats, len(station.all_of(EngineStats)) + 1)

        stats = station.all_of(EngineStats)[-1]
        assert tokens == oracle([1, 2], 200)
        assert stats.undecodable == len(junk) + 1
        assert stats.fenced == 2
        state = await station.call(DumpState())
        assert state.requests == ()
        assert station.process.poll() is None


async def test_a_client_that_does_not_read_is_cut_off_while_another_streams_on(run_dir: Path):
    async with (
        RawClient(run_dir) as raw,
        engine_station(run_dir, more_clients=(GATEWAY,), outbox_limit=512) as station,
    ):
        await ready(station)
        await raw.meet()
        await raw.send_body(an_add("unread", [3], max_tokens=1990, logprobs=20, ignore_eos=True))
        good = station.add("good", [1, 2], max_tokens=300)

        tokens, _ = await finish(good)
        while station.all_of(EngineStats)[-1].clients_cut_off < 1:
            await station.wait_for(EngineStats, len(station.all_of(EngineStats)) + 1)

        assert tokens == oracle([1, 2], 300)
        state = await station.call(DumpState())
        assert state.requests == ()
        assert state.step < 1990, "its request was ended before it was done"


async def test_a_dead_gateways_requests_end_when_the_supervisor_says_so(run_dir: Path):
    async with (
        RawClient(run_dir) as raw,
        engine_station(run_dir, more_clients=(GATEWAY,)) as station,
    ):
        await ready(station)
        await raw.meet()
        await raw.send_body(an_add("orphan", [SLOW], max_tokens=1000))
        while not (await station.call(DumpState())).requests:
            await asyncio.sleep(0.01)

        station.client.abort_client("e0", GATEWAY, 2, new_context())

        assert (await station.call(DumpState())).requests == ()


# ------------------------------------------------------------ ends


async def test_sigterm_ends_it_with_last_words_and_code_0(run_dir: Path):
    async with engine_station(run_dir) as station:
        await ready(station)
        station.add("running", [SLOW], max_tokens=1000)

        station.process.send_signal(signal.SIGINT)
        await station.call(Ping())
        station.process.send_signal(signal.SIGTERM)

        dead = await station.wait_for(EngineDead)
        assert dead.reason == "shutdown"
        assert await station.wait_exit() == 0


async def test_sigterm_ends_it_soon_even_when_a_client_does_not_read(run_dir: Path):
    async with (
        RawClient(run_dir) as raw,
        engine_station(run_dir, more_clients=(GATEWAY,)) as station,
    ):
        await ready(station)
        await raw.meet()
        await raw.send_body(an_add("unread", [3], max_tokens=1990, logprobs=20, ignore_eos=True))
        await raw.router.poll(100)

        station.process.send_signal(signal.SIGTERM)
        await station.wait_for(EngineDead)

        assert await station.wait_exit() == 0
        assert now_ns() - station.heard[-1][0] < 6e9


async def test_a_broken_device_ends_it_with_last_words_and_its_own_code(run_dir: Path):
    async with engine_station(run_dir) as station:
        await ready(station)
        station.add("fatal", [FATAL])

        dead = await station.wait_for(EngineDead)

        assert (dead.reason, dead.detail) == ("device_error", "the device is gone")
        assert await station.wait_exit() == 70


async def test_an_engine_whose_input_thread_died_says_so_and_ends(run_dir: Path):
    async with engine_station(run_dir, model="deaf") as station:
        await ready(station)  # a message that came before would find the thread unharmed
        station.add("any", [1])

        dead = await station.wait_for(EngineDead)

        assert (dead.reason, dead.detail) == ("io_thread_died", "the input thread died")
        assert await station.wait_exit() == 1


async def test_an_engine_whose_output_thread_died_says_so_and_ends(run_dir: Path):
    async with engine_station(run_dir, model="mute") as station:
        dead = await station.wait_for(EngineDead)  # the thread dies of EngineReady, if not before

        assert (dead.reason, dead.detail) == ("io_thread_died", "the output thread died")
        assert await station.wait_exit() == 1


async def test_sigusr1_dumps_the_stacks_and_the_engine_lives(run_dir: Path, capfd: Any):
    async with engine_station(run_dir) as station:
        await ready(station)

        station.process.send_signal(signal.SIGUSR1)
        await station.call(Ping())

        assert "process.py" in capfd.readouterr().err


async def test_the_end_of_the_parents_pipe_ends_it(run_dir: Path):
    async with engine_station(run_dir) as station:
        await ready(station)

        os.close(station.parent_write)

        assert await station.wait_exit() == 71


PARENT = """
import os, subprocess, sys, time
read, write = os.pipe()
with os.fdopen(write, "wb") as file:
    file.write(sys.argv[1].encode())
command = [sys.executable, "-m", "tests.engine.core.hash_engine", "--config-fd", str(read)]
process = subprocess.Popen(command, pass_fds=(read,))
print(process.pid, flush=True)
time.sleep(60)
"""


def start_parent(run_dir: Path) -> "subprocess.Popen[bytes]":
    """A process that starts an engine, without a pipe, and prints its pid."""
    config = EngineConfig(
        engine_id="e0",
        epoch=3,
        model="hash",
        model_name="m",
        clients=(endpoint(run_dir, "supervisor"),),
    )
    command = [sys.executable, "-c", PARENT, msgspec.json.encode(config).decode()]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


async def test_sigkill_of_the_parent_ends_it_within_two_seconds_without_a_pipe(run_dir: Path):
    async with RawClient(run_dir, "supervisor") as raw:
        parent = start_parent(run_dir)
        pid = int(await asyncio.to_thread(parent.stdout.readline))
        await raw.meet()
        assert is_alive(pid)

        parent.kill()
        parent.wait()
        parent.stdout.close()

        await wait_gone(pid, 2.0)
