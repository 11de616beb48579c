"""No name and no path gets anything but an adapter below an allowed root."""

import os
from pathlib import Path

import pytest

from appliance.supervisor.adapter_files import MAX_CONFIG_BYTES, check_name, find_adapter
from appliance.supervisor.admin.ports import RefusedError
from tests.appliance.supervisor.adapter_dirs import make_dir

OUTSIDE = "there is no such directory below an adapter root"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_dir(tmp_path / "secret")
    make_dir(tmp_path / "root" / "good")
    make_dir(tmp_path / "root-too" / "good")
    return tmp_path / "root"


def refusal(path: object, root: Path) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        find_adapter(str(path), [root])
    return refused.value


@pytest.mark.parametrize("name", ["a", "sql-lora", "V2.1_x", "9", "x" * 64])
def test_a_plain_name_is_taken(name: str):
    check_name(name, ["base"])


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../x", "/etc", "a/b", "%2e%2e%2f", "a\x00", "a\n", "-rf", ".hidden",
        "x" * 65, "x" * 5000, "\u2024\u2024", "\uff41", "a b", "base",
    ],
)  # fmt: skip
def test_any_other_name_is_refused(name: str):
    with pytest.raises(RefusedError) as refused:
        check_name(name, ["base"])
    assert refused.value.code == "invalid_adapter"


def test_an_adapter_below_a_root_is_found_where_it_really_is(root: Path, tmp_path: Path):
    (root / "current").symlink_to(root / "good")
    (tmp_path / "way-in").symlink_to(root)

    assert find_adapter(str(root / "good"), [root]) == root / "good"
    assert find_adapter(str(root / "current"), [root]) == root / "good"
    assert find_adapter(f"{root}/good/../good", [root]) == root / "good"
    assert find_adapter(str(tmp_path / "way-in" / "good"), [root]) == root / "good"
    assert find_adapter(str(root / "good"), [tmp_path / "way-in"]) == root / "good"


@pytest.mark.parametrize(
    "path",
    [
        "{root}/../secret", "{root}/good/../../secret", "/etc", "/", "/proc/self", "/dev",
        "{tmp}/root-too/good", "{tmp}/secret", "{root}/none", "{root}/good\x00", "good", "./good",
        "", "~", "{root}/" + "x" * 5000, "{root}/" + "x/" * 3000, "{root}/out", "{root}/loop",
        "{root}/good/adapter_config.json", "{root}/%2e%2e/secret", "file://{root}/good",
    ],
)  # fmt: skip
def test_what_is_outside_or_not_there_has_one_and_the_same_answer(
    root: Path, tmp_path: Path, path: str
):
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "loop").symlink_to(root / "loop")

    refused = refusal(path.format(root=root, tmp=tmp_path), root)

    assert (refused.code, str(refused)) == ("adapter_not_found", OUTSIDE)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("kind", ["missing", "directory", "pipe", "device", "link out"])
def test_files_that_are_no_files_are_refused_at_once(
    root: Path, tmp_path: Path, name: str, kind: str
):
    file = root / "good" / name
    file.unlink()
    match kind:
        case "directory":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "link out":
            file.symlink_to(tmp_path / "secret" / name)

    refused = refusal(root / "good", root)

    assert refused.code == "invalid_adapter"
    assert str(refused) == f"the adapter has no readable file {name}"


def test_links_between_files_below_the_roots_are_followed(root: Path):
    blobs = root / "blobs"
    blobs.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (root / "good" / name).rename(blobs / name)
        (root / "good" / name).symlink_to(blobs / name)

    assert find_adapter(str(root / "good"), [root]) == root / "good"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", '{"peft_type": "IA3"}', "{}", "[" * 50_000, "\udcff"]
)
def test_a_configuration_that_is_none_is_refused(root: Path, text: str):
    config = root / "good" / "adapter_config.json"
    config.write_bytes(text.encode("utf-8", "surrogateescape"))

    assert refusal(root / "good", root).code == "invalid_adapter"


def test_a_huge_configuration_is_not_read(root: Path):
    with (root / "good" / "adapter_config.json").open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)

    assert refusal(root / "good", root).code == "invalid_adapter"
