"""Recordings of dead epochs are kept, found and told of, with or without an appliance."""

import random
from pathlib import Path

import pytest

from appliance.supervisor.admin.ports import NotFoundError
from appliance.supervisor.flight_files import (
    DIRECTORY,
    KEPT_EPOCHS,
    NUM_EVENTS,
    Ending,
    FlightFiles,
)
from appliance.supervisor.flight_texts import crash_of
from engine.config import EngineConfig
from engine.core.batch import ScheduledRequest
from engine.core.flight_recorder import BUILT, FlightRecorder, open_flight_recorder
from engine.core.plan import Plan
from engine.log_lines import escape
from engine.wire.flight import EVENT_BYTES, EVENT_CAPACITY, EVENTS_OFFSET
from engine.wire.messages import SamplingParams


@pytest.fixture
def files(tmp_path: Path) -> FlightFiles:
    return FlightFiles(tmp_path / DIRECTORY)


def record(files: FlightFiles, epoch: int, engine_id: str = "e0") -> FlightRecorder:
    return open_flight_recorder(
        EngineConfig(
            engine_id=engine_id,
            epoch=epoch,
            model="m",
            model_name="m",
            clients=(),
            flight_path=files.new_path(engine_id, epoch),
        )
    )


def begin(recorder: FlightRecorder, step: int, *names: str) -> None:
    sampling = SamplingParams(max_tokens=1)
    batch = [ScheduledRequest(name, [1], 0, [0], True, sampling, 0) for name in names]
    plan = Plan(batch=batch, prefill_tokens=16, decode_tokens=len(batch))
    recorder.begin_step(step, step, plan, 2, 5)


def test_the_last_epochs_are_kept_and_other_engines_are_left_alone(files: FlightFiles):
    record(files, 1, "e1")
    for epoch in range(1, 6):
        record(files, epoch)
        files.bury("e0", epoch, Ending(reason="SIGKILL", wanted=False))

    assert files.epochs("e0") == [5, 4, 3]
    assert len(files.epochs("e0")) == KEPT_EPOCHS
    assert files.engines() == ["e0", "e1"]


def test_ends_of_epochs_that_recorded_nothing_go_too(files: FlightFiles, tmp_path: Path):
    record(files, 1)
    for epoch in range(2, 30):
        files.new_path("e0", epoch)
        files.bury("e0", epoch, Ending(reason="SIGKILL", wanted=False))

    assert len(list((tmp_path / DIRECTORY).iterdir())) == KEPT_EPOCHS
    assert files.engines() == []


def test_a_place_that_is_no_directory_holds_no_recordings(files: FlightFiles, tmp_path: Path):
    (tmp_path / DIRECTORY).touch()

    files.new_path("e0", 1)
    assert files.engines() == []
    with pytest.raises(NotFoundError):
        files.report("e0", 20)


def test_without_an_epoch_the_newest_crash_is_meant(files: FlightFiles):
    for epoch, wanted in ((1, False), (2, True)):
        begin(record(files, epoch), epoch, "a")
        files.bury("e0", epoch, Ending(reason="gone", wanted=wanted, log_tail=["last words"]))
    record(files, 3)

    report = files.report("e0", 20)

    assert (report.epoch, report.last_exit, report.alive) == (1, "gone", False)
    assert report.log_tail == ["last words"]
    assert files.report("e0", 20, 3).alive
    assert [step.step for step in files.report("e0", 20, 2).steps] == [2]


def test_without_a_crash_the_newest_is_meant(files: FlightFiles):
    record(files, 1)
    record(files, 2)

    assert files.report("e0", 20).epoch == 2


@pytest.mark.parametrize("engine_id", ["e9", "../flight/e0", "e0/../e0", ""])
def test_what_there_is_no_recording_of_is_not_found(files: FlightFiles, engine_id: str):
    record(files, 1)

    for epoch in (None, 1):
        with pytest.raises(NotFoundError):
            files.report(engine_id, 20, epoch)


def test_the_story_of_a_crash_names_step_stage_and_batch(files: FlightFiles):
    recorder = record(files, 4)
    recorder.event("phase", "weights")
    begin(recorder, 811, "req-a")
    recorder.end_step(1)
    begin(recorder, 812, *(f"req-{number}" for number in range(10)))
    recorder.stage(BUILT, 2)
    files.bury("e0", 4, Ending(reason="SIGSEGV", wanted=False, log_tail=["x", "oh no"]))

    crash = crash_of(files.report("e0", 3))

    assert crash.moment == (
        "in step 812 in the forward pass, with 10 requests: "
        "req-0, req-1, req-2, req-3, req-4, req-5, req-6, req-7 and 2 more"
    )
    assert "epoch 4: SIGSEGV; last step 812 (built): 16 prompt and 10 decode tokens" in crash.text
    assert "events: phase weights" in crash.text
    assert crash.text.endswith("log: x | oh no")


def test_an_engine_that_died_between_two_steps_is_not_said_to_have_been_in_one(files: FlightFiles):
    recorder = record(files, 1)
    assert crash_of(files.report("e0", 3)).moment is None
    begin(recorder, 1, "a")
    recorder.end_step(2)

    assert crash_of(files.report("e0", 3)).moment == "step 1 was done, no other had begun"


def test_junk_in_a_recording_is_read_as_far_as_it_goes_and_drives_no_terminal(files: FlightFiles):
    begin(record(files, 1), 1, "a\x1b[2J\n", "\u202eb")
    path = Path(files.new_path("e0", 1))
    whole = bytearray(path.read_bytes())
    for seed in range(8):
        junk = random.Random(seed)
        for offset in junk.sample(range(36, len(whole)), 20_000):
            whole[offset] = junk.randrange(256)
        for slot in range(EVENT_CAPACITY):  # whole records of junk
            at = EVENTS_OFFSET + slot * EVENT_BYTES
            whole[at : at + EVENT_BYTES] = (slot + 1).to_bytes(8, "little") + junk.randbytes(248)
        path.write_bytes(whole)

        report = files.report("e0", 4096)
        crash = crash_of(report)
        texts = [text for event in report.events for text in (event.kind, event.text)]
        texts += [name for step in report.steps for name in step.request_ids]
        assert len(report.events) == NUM_EVENTS
        for text in (crash.text, crash.moment or "", report.engine, *texts):
            assert escape(text) == text
