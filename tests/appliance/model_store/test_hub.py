"""Hub ids: the real library against a hub on this machine."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from appliance.cli.models import models_list, models_pull
from appliance.model_store.hub import pull_hub
from appliance.model_store.hub_files import INDEX_NAME, text_files, weight_files
from appliance.model_store.hub_store import (
    HubReference,
    find_hub_model,
    hub_reference,
    pulled_hub_models,
)
from appliance.model_store.packs import ModelStoreError
from appliance.model_store.resolve import ResolvedModel, resolve
from engine.checkpoint.checkpoint import open_checkpoint
from tests.appliance.model_store.hub_server import (
    FIRST,
    SECOND,
    Hub,
    Repository,
    files_of,
    serve_hub,
)

pytestmark = pytest.mark.process

NAME = "org/tiny"
MIB = 1 << 20
LARGE = random.Random(0).randbytes(3 * MIB)
PICKLED = {"config.json": b"{}", "pytorch_model.bin": b"\x80\x04."}
JUNK = {
    "README.md": b"# Tiny",
    "pytorch_model.bin": b"\x80\x04.",
    "consolidated.safetensors": b"the same weights once more",
    "original/params.json": b"{}",
    "training_args.bin": b"\x80",
}


def quiet(_phase: str, _done_bytes: int, _total_bytes: int) -> None:
    """Take a progress report and say nothing."""


@pytest.fixture
def hub(tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a model of two commits; the library keeps its own files in the test's folder."""
    first = files_of(tiny_model_path) | JUNK
    second = first | {"generation_config.json": b'{"eos_token_id": [2, 0]}'}
    tiny = Repository({FIRST: first, SECOND: second}, {"main": FIRST, "v2": SECOND})
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    with serve_hub({NAME: tiny}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def paths_asked(hub: Hub, method: str = "GET") -> list[str]:
    return [path.rsplit("/", 1)[-1] for asked, path, _ in hub.asked if asked == method]


def ranges_asked(hub: Hub) -> list[str]:
    return [asked for _, file, asked in hub.asked if file.endswith("model.safetensors") and asked]


def test_a_hub_id_is_downloaded_and_opened_without_pickles_or_doubles(
    hub: Hub, tmp_path: Path, tiny_model_path: Path
):
    reports: list[str] = []

    model = resolve(NAME, tmp_path / "models", progress=lambda phase, *_: reports.append(phase))

    folder = tmp_path / "models" / "hub" / "org--tiny"
    assert model == ResolvedModel(folder / FIRST, NAME)
    assert open_checkpoint(model.path).tokenizer().get_vocab_size() > 0
    assert {file.name for file in model.path.iterdir()} == {
        *files_of(tiny_model_path),
        "hub.json",
    }
    assert not set(JUNK) & set(paths_asked(hub))
    assert json.loads((folder / "revisions.json").read_text()) == {"main": FIRST}
    assert reports[0] == "look"


def test_what_is_here_is_used_without_a_network_until_it_is_pulled_again(hub: Hub, tmp_path: Path):
    first = resolve(NAME, tmp_path)
    hub.repositories[NAME].revisions["main"] = SECOND
    hub.is_down = True

    assert resolve(NAME, tmp_path) == first
    assert resolve(f"{NAME}@{FIRST}", tmp_path) == first

    hub.is_down = False
    pulled = pull_hub(HubReference(NAME), tmp_path, quiet)
    assert pulled.commit == SECOND
    assert resolve(NAME, tmp_path).path == pulled.path
    assert len(pulled_hub_models(tmp_path)) == 2


def test_a_revision_comes_from_the_name_or_the_settings_and_is_pinned(hub: Hub, tmp_path: Path):
    assert resolve(NAME, tmp_path, revision="v2").path.name == SECOND
    assert resolve(f"{NAME}@{FIRST}", tmp_path, revision="v2").path.name == FIRST
    hub.asked.clear()

    assert resolve(f"{NAME}@{SECOND}", tmp_path).path.name == SECOND
    assert hub.asked == []


def test_the_command_pulls_what_is_new_and_lists_it(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert models_pull(NAME, tmp_path) == 0
    hub.asked.clear()
    assert models_pull(NAME, tmp_path) == 0

    folder = tmp_path / "hub" / "org--tiny" / FIRST
    assert [method for method, _, _ in hub.asked] == ["GET"]
    out, err = capsys.readouterr()
    assert out == f"{folder}\n{folder}\n"
    assert f"org/tiny: commit {FIRST}" in err
    assert models_list(tmp_path) == 0
    assert str(folder) in capsys.readouterr().out
    assert models_pull("org/absent", tmp_path) == 1
    assert "quarterdeck: " in capsys.readouterr().err


def test_a_connection_that_breaks_is_taken_up_where_it_broke(hub: Hub, tmp_path: Path):
    repository = hub.repositories[NAME]
    repository.commits[FIRST]["model.safetensors"] = LARGE
    repository.cuts["model.safetensors"] = [3 * MIB // 2, 5 * MIB // 4]

    path = resolve(NAME, tmp_path).path

    assert ranges_asked(hub) == [f"bytes={MIB}-", f"bytes={2 * MIB}-"]
    assert (path / "model.safetensors").read_bytes() == LARGE


def test_an_interrupted_download_goes_on_in_the_next_one(hub: Hub, tmp_path: Path):
    repository = hub.repositories[NAME]
    repository.commits[FIRST]["model.safetensors"] = LARGE
    repository.cuts["model.safetensors"] = [3 * MIB // 2, 0, 0, 0, 0]
    with pytest.raises(ModelStoreError, match=r"breaks again and again.*kept and continued"):
        resolve(NAME, tmp_path)
    assert find_hub_model(HubReference(NAME), tmp_path) is None
    repository.cuts.clear()
    hub.asked.clear()

    path = resolve(NAME, tmp_path).path

    assert ranges_asked(hub) == [f"bytes={MIB}-"]
    assert "config.json" not in paths_asked(hub)
    assert (path / "model.safetensors").read_bytes() == LARGE


def test_shards_are_taken_from_the_index(hub: Hub, tmp_path: Path, tiny_model_path: Path):
    whole = load_file(tiny_model_path / "model.safetensors")
    names = sorted(whole)
    files = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    commit = hub.repositories[NAME].commits[FIRST]
    del commit["model.safetensors"]
    for file, part in files.items():
        save_file({name: whole[name] for name in part}, tmp_path / file)
        commit[file] = (tmp_path / file).read_bytes()
    weight_map = {name: file for file, part in files.items() for name in part}
    commit["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()

    path = resolve(NAME, tmp_path / "models").path

    assert sorted(open_checkpoint(path).tensors) == names
    assert {file.name for file in path.glob("*.safetensors")} == set(files)


def test_a_repository_of_pickles_is_refused(hub: Hub, tmp_path: Path):
    hub.repositories["org/other"] = Repository({FIRST: PICKLED}, {"main": FIRST})

    with pytest.raises(
        ModelStoreError, match=r"can run code when it is read; only \*\.safetensors"
    ):
        resolve("org/other", tmp_path)
    assert paths_asked(hub) == ["main"]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["config.json", "pytorch_model.bin"], r"can run code when it is read"),
        (["model.gguf"], "has GGUF files"),
        (["README.md", "sub/model.safetensors"], r"has no \*\.safetensors"),
        (["adapter_model.safetensors"], r"no config\.json"),
    ],
)
def test_a_repository_without_usable_weights_says_what_it_has(names: list[str], reason: str):
    with pytest.raises(ModelStoreError, match=f"org/other .*{reason}"):
        text_files(names, "org/other")


@pytest.mark.parametrize("index", ["", "[]", '{"weight_map": {"a": "../x.safetensors"}}'])
def test_an_index_that_leads_astray_is_refused(tmp_path: Path, index: str):
    (tmp_path / INDEX_NAME).write_text(index)

    with pytest.raises(ModelStoreError, match=INDEX_NAME):
        weight_files(["config.json", INDEX_NAME, "../x.safetensors"], tmp_path)


def test_a_model_that_cannot_run_is_refused_before_its_weights_are_fetched(
    hub: Hub, tmp_path: Path
):
    hub.repositories[NAME].commits[FIRST]["config.json"] = b'{"architectures": ["Mamba"]}'

    with pytest.raises(ModelStoreError, match=r"cannot be run: .*supported: LlamaForCausalLM"):
        resolve(NAME, tmp_path)
    assert "model.safetensors" not in paths_asked(hub)


def test_a_gated_model_says_what_to_do_and_opens_with_a_token(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hub.repositories[NAME].gated = True
    with pytest.raises(
        ModelStoreError, match=f"gated: accept its terms at {hub.url}/{NAME}.*HF_TO"
    ):
        resolve(NAME, tmp_path)

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert resolve(NAME, tmp_path).path.name == FIRST
    assert hub.tokens == {"Bearer hf_secret"}


def test_what_the_hub_does_not_have_or_cannot_give_is_told(hub: Hub, tmp_path: Path):
    with pytest.raises(ModelStoreError, match=r"no model org/absent, or it is private.*HF_TOKEN"):
        resolve("org/absent", tmp_path)
    with pytest.raises(ModelStoreError, match="has no revision 'nope'"):
        resolve(f"{NAME}@nope", tmp_path)
    hub.is_down = True
    with pytest.raises(ModelStoreError, match=f"{hub.url} answers for {NAME}: 503"):
        resolve(NAME, tmp_path)


def test_without_a_network_the_message_says_what_to_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    with pytest.raises(ModelStoreError, match=r"127\.0\.0\.1:9 cannot be reached.*HF_ENDPOINT"):
        resolve(NAME, tmp_path)


def test_offline_mode_is_honoured(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(ModelStoreError, match="cannot be reached"):
        resolve(NAME, tmp_path)
    assert hub.asked == []


def test_a_model_larger_than_the_disk_is_told_before_its_weights_are_fetched(
    hub: Hub, tmp_path: Path
):
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 60

    hub.repositories[NAME].commits[FIRST]["model.safetensors"] = Huge(b"x")

    with pytest.raises(ModelStoreError, match=r"needs \d+ MiB more; .* MiB free"):
        resolve(NAME, tmp_path)
    assert "model.safetensors" not in paths_asked(hub)


def test_without_the_extra_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(ModelStoreError, match="pip install 'huggingface-hub"):
        resolve(NAME, tmp_path)


def test_a_damaged_download_does_not_count(hub: Hub, tmp_path: Path):
    path = resolve(NAME, tmp_path).path
    (path / "model.safetensors").write_bytes(b"")

    (path.parent / f".partial-{SECOND}").mkdir()
    assert find_hub_model(HubReference(NAME), tmp_path) is None
    assert (resolve(NAME, tmp_path).path / "model.safetensors").stat().st_size > 0
    assert not (path.parent / f".partial-{SECOND}").exists()


@pytest.mark.parametrize(
    "model", ["a", "a/b/c", "/a/b", "../b", "a/../b", "~/b", "-a/b", "a/b@", "a/b@--x", "", "a b/c"]
)
def test_what_cannot_be_a_hub_id_is_none(model: str):
    assert hub_reference(model) is None
