"""Where a step's time goes, what it costs, and how long blocks live."""

import time

import msgspec
import pytest
import torch

from engine.checkpoint.checkpoint import open_checkpoint
from engine.config import ClientEndpoint, EngineConfig
from engine.core.ages import Ages
from engine.core.batch import ScheduledRequest
from engine.core.block_pool import BlockPool
from engine.core.ceilings import measure_ceilings
from engine.core.engine_stats import SocketAccounts, engine_stats
from engine.core.records import RecordBuffer
from engine.core.runner import TorchRunner
from engine.core.step_costs import ModelCosts, step_costs
from engine.process_figures import FigureReader
from engine.wire.calls import RecordingSet, SetRecording
from engine.wire.hops import HopReceived, StepRecord
from engine.wire.messages import (
    EngineOutputs,
    EngineStats,
    SamplingParams,
    UtilityCall,
    UtilityReply,
)
from engine.wire.sockets import MessageCounts
from engine.wire.stats import AGE_EDGES, BATCH_EDGES, STEP_EDGES
from tests.engine.core.core_bench import CoreBench
from tests.engine.models.harness import engine_config


def stats_of(bench: CoreBench) -> EngineStats:
    counts = MessageCounts()
    sockets = SocketAccounts(
        counts, counts, clients_cut_off=lambda: 0, inbox=lambda: 3, outbox=lambda: 4
    )
    return engine_stats(bench.core, sockets, RecordBuffer(), FigureReader())


@pytest.fixture(scope="module")
def real(tiny_model_path):
    clients = (ClientEndpoint(name="supervisor", input="", output=""),)
    config = EngineConfig(
        engine_id="e0", epoch=1, model=str(tiny_model_path), model_name="m", clients=clients,
        kv_cache_bytes=1 << 22, kernels="reference",
    )  # fmt: skip
    runner = TorchRunner(config)
    return runner, runner.load(lambda *_: None)


def test_the_parts_of_a_step_are_in_order_and_add_up(real):
    bench = CoreBench(loaded=real)
    bench.core.clock = time.monotonic_ns
    bench.add("a", [5, 6, 7, 8, 9], max_tokens=4, ignore_eos=True)
    for _ in range(4):
        bench.core.step()

    steps = [record for record in bench.records if isinstance(record, StepRecord)]
    assert len(steps) == 4
    for step in steps:
        stamps = (
            step.start_ns, step.scheduled_ns, step.built_ns, step.forwarded_ns, step.executed_ns,
            step.updated_ns, step.end_ns,
        )  # fmt: skip
        assert list(stamps) == sorted(stamps)
        assert step.rows >= step.prefill_tokens + step.decode_tokens
    stats = stats_of(bench)
    parts = (
        stats.schedule_seconds + stats.build_seconds + stats.forward_seconds
        + stats.sample_seconds + stats.send_seconds
    )  # fmt: skip
    assert parts == pytest.approx(stats.step_seconds)
    assert stats.forward_seconds > 0
    assert sum(stats.step_counts) == sum(stats.batch_counts) == 4
    assert len(stats.step_counts) == len(STEP_EDGES) + 1
    assert len(stats.batch_counts) == len(BATCH_EDGES) + 1
    assert stats.rows - stats.padding_rows == 5 + 3
    assert (stats.inbox, stats.outbox) == (3, 4)
    assert stats.process is not None
    assert stats.process.threads >= 1


def test_operations_and_bytes_follow_from_the_shape_of_the_model(real, tiny_model_path):
    runner, facts = real
    config = open_checkpoint(tiny_model_path).config
    bench = CoreBench(loaded=(runner, facts))
    bench.add("a", list(range(5, 15)), max_tokens=2, ignore_eos=True)
    bench.core.step()
    bench.core.step()

    accounts = bench.core.accounts
    head = 2 * config.vocab_size * config.hidden_size
    pair = 4 * config.num_heads * config.head_dim * config.num_layers
    pairs = sum(range(1, 12))  # ten prompt tokens and one decode
    assert accounts.flops == 11 * 2 * facts.num_parameters + 2 * head + pairs * pair
    token_bytes = 2 * 2 * config.num_kv_heads * config.head_dim * config.num_layers
    embedding = config.vocab_size * config.hidden_size * 2
    assert accounts.bytes_moved == 2 * (facts.weights_bytes - embedding) + 21 * token_bytes


def test_a_step_on_the_c_kernels_reads_the_packed_weights(tiny_model_path):
    runner = TorchRunner(engine_config(tiny_model_path, kernels="cpu", quantization="int8"))
    facts = runner.load(lambda *_: None)
    config = open_checkpoint(tiny_model_path).config

    assert facts.costs is not None
    # a tied head is the embedding; a group of 32 weights has a scale of two bytes
    weights = facts.num_parameters + config.vocab_size * config.hidden_size
    assert 34 / 32 * weights <= facts.costs.weights_bytes < 1.1 * 34 / 32 * weights


def test_a_sliding_window_bounds_what_attention_costs():
    costs = ModelCosts(
        row_flops=0, head_flops=0, pair_flops=0, window_pair_flops=1, weights_bytes=0,
        token_bytes=0, window_token_bytes=1, window=8,
    )  # fmt: skip
    share = ScheduledRequest("a", [1], 99, [], True, SamplingParams(max_tokens=1), 0)

    assert step_costs(costs, [share]) == (8.0, 8.0)


def test_the_ceilings_are_above_what_the_steps_reach(real):
    _, facts = real
    ceilings = measure_ceilings(torch.float32, torch.device("cpu"))

    assert ceilings.flops > 1e8
    assert ceilings.bytes_per_s > 1e8
    assert facts.peak_flops > 0
    assert facts.peak_bytes_per_s > 0
    assert facts.num_threads >= 1


def test_blocks_tell_how_long_they_were_held_and_how_old_they_were_when_evicted():
    pool = BlockPool(2, 16)
    pool.now_ns = 1_000_000_000
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.register(blocks[0], b"a")
    pool.now_ns += 3_000_000_000
    pool.free(blocks)
    assert pool.residence.counts[AGE_EDGES.index(5.0)] == 2
    assert pool.residence.seconds == 6.0

    pool.now_ns += 20_000_000_000
    pool.allocate(2)

    assert pool.evicted == 1
    assert pool.eviction_age.counts[AGE_EDGES.index(60.0)] == 1
    assert sum(pool.eviction_age.counts) == 1


def test_a_duration_on_an_edge_belongs_to_its_bucket():
    ages = Ages()
    ages.add(int(AGE_EDGES[0] * 1e9))
    ages.add(int(AGE_EDGES[-1] * 1e9) + 1)

    assert ages.counts[0] == ages.counts[-1] == 1


def test_recording_stops_and_goes_on_while_counts_go_on():
    bench = CoreBench()
    call = UtilityCall(call_id="1", deadline_ns=10**18, call=SetRecording(recording=False))
    bench.send(call)
    bench.records.clear()
    bench.add("a", [1, 2, 3], max_tokens=2)
    bench.core.step()

    assert bench.records == []
    assert bench.core.accounts.generation_tokens == 1
    outputs = [out for out in bench.posted if isinstance(out.body, EngineOutputs)]
    assert [len(out.links) for out in outputs] == [1], "a client that is cut off is told by them"
    replies = [out.body for out in bench.posted if isinstance(out.body, UtilityReply)]
    assert replies[0].error is None
    assert msgspec.msgpack.decode(replies[0].result, type=RecordingSet) == (
        RecordingSet(recording=False)
    )
    on = UtilityCall(call_id="2", deadline_ns=10**18, call=SetRecording(recording=True))
    bench.send(on)
    bench.core.step()
    assert any(isinstance(record, StepRecord) for record in bench.records)
    assert any(isinstance(record, HopReceived) for record in bench.records)


def test_a_step_links_the_requests_that_got_nothing_from_it():
    bench = CoreBench(max_num_batched_tokens=16, max_num_seqs=4)
    header = bench.add("long", list(range(100)), max_tokens=2)
    bench.core.step()

    (step,) = [record for record in bench.records if isinstance(record, StepRecord)]
    assert [link.request_id for link in step.links] == ["long"]
    assert step.links[0].context.trace_id == header.trace_id
