from pathlib import Path

import pytest

from appliance.model_store.packs import ModelStoreError
from appliance.model_store.resolve import ResolvedModel, resolve


def test_a_pulled_pack_is_found_by_its_name(smollm2_path: Path):
    model_dir = smollm2_path.parent.parent

    assert resolve("smollm2", model_dir) == ResolvedModel(smollm2_path, "smollm2")


def test_a_pack_that_was_not_pulled_says_the_command(tmp_path: Path):
    with pytest.raises(ModelStoreError, match="run `quarterdeck models pull smollm2`"):
        resolve("smollm2", tmp_path)


def test_a_hugging_face_directory_is_called_by_its_name(tiny_model_path: Path, tmp_path: Path):
    assert resolve(str(tiny_model_path), tmp_path) == ResolvedModel(tiny_model_path, "tiny")


def test_a_directory_beats_a_pack_only_when_written_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").write_text("{}")

    assert resolve("./smollm2", tmp_path / "models").path == tmp_path / "smollm2"
    with pytest.raises(ModelStoreError, match="models pull"):
        resolve("smollm2", tmp_path / "models")


def test_a_gguf_file_is_called_by_its_stem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "My-Model.Q8_0.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert resolve(str(path), tmp_path) == ResolvedModel(path, "My-Model.Q8_0")
    assert resolve("~/My-Model.Q8_0.gguf", tmp_path).path == path


def test_a_directory_without_a_configuration_names_its_gguf_files(tmp_path: Path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")

    with pytest.raises(ModelStoreError, match=r"no config\.json.*name one of its files: a\.gguf"):
        resolve(str(tmp_path), tmp_path)


def test_another_file_is_refused(tmp_path: Path):
    (tmp_path / "model.bin").write_bytes(b"x")

    with pytest.raises(
        ModelStoreError, match=r"is not a \.gguf file; give the name of a model pack"
    ):
        resolve(str(tmp_path / "model.bin"), tmp_path)


@pytest.mark.parametrize("name", ["nothing", "./nothing", "a/b/c", "../org/name", "", "org/name@"])
def test_what_is_not_here_names_what_is_accepted(tmp_path: Path, name: str):
    with pytest.raises(ModelStoreError, match="there is no model") as caught:
        resolve(name, tmp_path)
    for accepted in ("model pack (smollm2", "Hugging Face", ".gguf", "hub id such as"):
        assert accepted in str(caught.value)
