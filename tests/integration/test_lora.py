"""LoRA adapters from end to end: loaded by the command line, asked for by an OpenAI client."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.integration.appliance_process import ApplianceProcess, wait_until
from tests.lora import make_adapter

pytestmark = pytest.mark.process

PROMPT = "The capital of Italy"


@pytest.fixture
def adapters(root: Path, tiny_model_path: Path) -> Path:
    """Two adapters that change every token, and one that does not fit."""
    directory = root / "adapters"
    make_adapter(directory / "sql", rank=4, seed=1, model_dir=tiny_model_path)
    make_adapter(directory / "chat", rank=8, seed=2, model_dir=tiny_model_path)
    (directory / "broken").mkdir()
    (directory / "broken" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    (directory / "broken" / "adapter_model.safetensors").write_bytes(b"\xff" * 64)
    return directory


@pytest.fixture
def appliance(root: Path, tiny_model_path: Path, adapters: Path) -> Iterator[ApplianceProcess]:
    started = ApplianceProcess(
        root, str(tiny_model_path), "--dtype", "float32", "--drain-s", "5", "--engines", "2",
        "--adapter-root", str(adapters),
    )  # fmt: skip
    try:
        yield started.start()
    finally:
        started.stop()


def lora(appliance: ApplianceProcess, *args: object) -> Any:
    done = appliance.cli("lora", *map(str, args), "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def states(appliance: ApplianceProcess, name: str) -> list[str]:
    row = next(row for row in lora(appliance, "list") if row["name"] == name)
    return [each["state"] for each in row["engines"]]


def test_an_adapter_lives_from_its_load_over_a_crash_to_its_unload(
    appliance: ApplianceProcess, adapters: Path
):
    sdk = appliance.sdk
    base_model = appliance.model

    def text(model: str) -> str:
        answer = sdk.completions.create(model=model, prompt=PROMPT, max_tokens=16, temperature=0)
        assert answer.model == model
        return answer.choices[0].text

    base = text(base_model)
    with pytest.raises(openai.NotFoundError):
        text("sql")

    loaded = lora(appliance, "load", "sql", adapters / "sql", "--pin")
    assert loaded["result"]["engines"] == ["e0", "e1"]
    lora(appliance, "load", "chat", adapters / "chat")
    sql, chat = text("sql"), text("chat")

    assert len({base, sql, chat}) == 3
    assert text(base_model) == base, "the base is what it was"
    listed = {model.id: model for model in sdk.models.list().data}
    assert list(listed) == [base_model, "chat", "sql"]
    assert listed["sql"].parent == base_model  # type: ignore[attr-defined]

    os.kill(appliance.engine("e0")["pid"], signal.SIGKILL)
    assert text("sql") == sql, "asked for while one engine is down"
    wait_until(lambda: states(appliance, "sql") == ["loaded", "loaded"], 30, "replayed")
    os.kill(appliance.engine("e1")["pid"], signal.SIGKILL)
    assert [text("sql"), text("chat"), text(base_model)] == [sql, chat, base]
    [row] = [row for row in lora(appliance, "list") if row["name"] == "sql"]
    assert row["pinned"]
    assert row["content_hash"] == loaded["result"]["content_hash"]

    lora(appliance, "unload", "sql")
    with pytest.raises(openai.NotFoundError):
        text("sql")
    assert [text("chat"), text(base_model)] == [chat, base]


def test_other_content_under_the_same_name_answers_anew_and_never_from_the_old_cache(
    appliance: ApplianceProcess, adapters: Path, tiny_model_path: Path
):
    def text(model: str) -> str:
        body = {"model": model, "prompt": PROMPT * 8, "max_tokens": 16, "temperature": 0}
        return appliance.post("/v1/completions", body).json()["choices"][0]["text"]

    lora(appliance, "load", "x", adapters / "sql")
    first = [text("x") for _ in range(3)]
    lora(appliance, "load", "y", adapters / "chat")
    lora(appliance, "load", "x", adapters / "chat")
    second = [text("x") for _ in range(3)]

    assert len(set(first)) == len(set(second)) == 1
    assert second[0] == text("y") != first[0]


def test_a_broken_adapter_changes_nothing_and_says_what_is_wrong(
    appliance: ApplianceProcess, adapters: Path, tmp_path: Path
):
    lora(appliance, "load", "x", adapters / "sql")
    before = lora(appliance, "list")[0]["content_hash"]

    broken = appliance.cli("lora", "load", "x", str(adapters / "broken"))
    outside = appliance.cli("lora", "load", "x", str(tmp_path))

    assert broken.returncode == 1
    assert "e0 refuses: " in broken.stderr
    assert outside.returncode == 2
    assert "--adapter-root" in outside.stderr
    assert lora(appliance, "list")[0]["content_hash"] == before
    assert states(appliance, "x") == ["loaded", "loaded"]


def test_an_adapter_is_there_again_after_sleep_and_after_a_restart_of_the_appliance(
    root: Path, tiny_model_path: Path, adapters: Path
):
    def serve() -> ApplianceProcess:
        return ApplianceProcess(
            root, str(tiny_model_path), "--dtype", "float32", "--adapter-root", str(adapters)
        ).start()

    def text(appliance: ApplianceProcess) -> str:
        body = {"model": "x", "prompt": PROMPT, "max_tokens": 16, "temperature": 0}
        answer = appliance.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    appliance = serve()
    try:
        lora(appliance, "load", "x", adapters / "sql")
        first = text(appliance)
        for level in ("1", "2"):
            assert appliance.cli("sleep", "e0", "--level", level).returncode == 0
            assert text(appliance) == first, "the request wakes the engine and has its adapter"
    finally:
        appliance.stop()
    appliance = serve()
    try:
        assert text(appliance) == first
        make_adapter(adapters / "sql", rank=4, seed=9, model_dir=tiny_model_path)
        assert appliance.cli("restart", "e0").returncode == 0
        wait_until(lambda: states(appliance, "x") == ["error"], 30, "changed content is reported")
        assert "have changed" in appliance.cli("lora", "list").stderr
    finally:
        appliance.stop()
