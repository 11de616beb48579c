"""Settings of kernels and formats: what is refused with which words, and where the cache is."""

from pathlib import Path

import pytest

from appliance.config.errors import ConfigError
from appliance.config.paths import weight_cache_dir
from tests.appliance.config.test_sources import load


def test_engines_choose_by_themselves_where_nothing_is_said():
    settings = load().settings

    assert (settings.quantization, settings.kv_cache_dtype, settings.kernels) == ("auto",) * 3
    assert (settings.weight_cache, settings.weight_cache_bytes) == (None, 16 << 30)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"quantization": "int4"},
            "--quantization = 'int4': allowed is auto or none or int8 or w4",
        ),
        ({"quantization": "int4"}, "did you mean int8?"),
        ({"kv_cache_dtype": "bf16"}, "--kv-cache-dtype = 'bf16': allowed is auto or bfloat16"),
        ({"kernels": "refrence"}, "; did you mean reference?"),
        ({"kernels": "cuda:avx2"}, "--kernels = 'cuda:avx2': allowed is auto, reference, cpu"),
        ({"weight_cache": 5}, "--weight-cache: 5 is neither a directory nor off"),
        ({"weight_cache": ""}, "--weight-cache: '' is neither a directory nor off"),
        ({"num_threads": 10**6}, "--num-threads = 1000000: allowed is a whole number from 1 to"),
        ({"weight_cache": False}, "--weight-cache: false is a boolean"),
        ({"weight_cache_bytes": "many"}, "--weight-cache-bytes: 'many' is not a size"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(flags: dict[str, object], words: str):
    with pytest.raises(ConfigError) as refused:
        load(flags)

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "wish", "obstacle"),
    [
        (
            {"quantization": "w4", "dtype": "float32"},
            "--quantization = 'w4'",
            "--dtype = 'float32'",
        ),
        ({"kernels": "cpu", "device": "cuda:0"}, "--kernels = 'cpu'", "--device = 'cuda:0'"),
        (
            {"kv_cache_dtype": "int8", "kernels": "reference"},
            "--kv-cache-dtype = 'int8'",
            "--kernels = 'reference'",
        ),
    ],
)
def test_what_needs_the_cpu_kernels_is_refused_where_something_rules_them_out(
    flags: dict[str, object], wish: str, obstacle: str
):
    with pytest.raises(ConfigError) as refused:
        load(flags)

    assert str(refused.value) == f"{wish} needs the cpu kernels, which {obstacle} rules out"
    assert refused.value.hint


def test_what_an_engine_says_of_itself_decides(tmp_path: Path):
    file = tmp_path / "quarterdeck.toml"
    file.write_text('dtype = "float32"\n[[engines]]\ndtype = "bfloat16"\nquantization = "int8"\n')
    assert load(cwd=tmp_path).settings.engines[0].quantization == "int8"

    file.write_text('dtype = "float32"\n[[engines]]\nquantization = "int8"\n')
    with pytest.raises(ConfigError, match="engines: quantization = 'int8' needs the cpu kernels"):
        load(cwd=tmp_path)


def test_formats_that_the_reference_has_are_not_refused():
    assert load({"kernels": "reference", "quantization": "none", "dtype": "float32"}).settings
    assert load({"kernels": "cpu:avx2", "kv_cache_dtype": "int8", "dtype": "bfloat16"}).settings


def test_the_weight_cache_is_a_directory_or_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def directory(text: str | None) -> Path | None:
        return weight_cache_dir(load({"weight_cache": text}, cwd=tmp_path).settings.weight_cache)

    assert directory(None) == directory("auto") == tmp_path / "cache" / "quarterdeck" / "weights"
    assert directory("off") is directory("OFF") is None
    assert directory("packed") == tmp_path / "packed"


def test_variables_of_developers_are_no_settings():
    env = {"QUARTERDECK_CPU_LIBRARY": "/tmp/other.so", "QUARTERDECK_BUILD_KERNELS": "off"}

    assert load(env=env).settings.kernels == "auto"
