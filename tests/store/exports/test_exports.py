from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sample_records import CONFIG, measured, predicted, records
from tunefa.errors import TunefaError
from tunefa.store import exports
from tunefa.store.record import Record

FAST = measured("fwd_q4096")
SLOW = measured("fwd_q4096", median_us=999.0, config={**CONFIG, "BLOCK_M": 64, "maxnreg": 168})
GUESS = predicted("fwd_q8192", arch="sm80", config={**CONFIG, "num_stages": 2})
CUDA = measured("fwd_q4096", kernel="attention_fwd_cuda", config={"TILE": 64}, median_us=1.0)
Q4096, Q8192 = str(FAST.workload), str(GUESS.workload)


def evaluate(source: str) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(compile(source, "exported", "exec"), scope)
    return scope


@pytest.mark.parametrize("name", exports.names())
def test_every_format_keeps_the_contract(name: str) -> None:
    found = exports.get(name)
    assert found.DESCRIPTION and "\n" not in found.DESCRIPTION
    assert found.SUFFIXES and all(suffix.startswith(".") for suffix in found.SUFFIXES)
    for some in ([], [FAST, SLOW, GUESS, CUDA]):
        assert found.dump(some).endswith("\n")


def test_names_are_the_files() -> None:
    files = Path(exports.__file__).parent.glob("[a-z]*.py")
    assert exports.names() == sorted(file.stem for file in files)
    assert {"flex", "json", "python", "triton", "yaml"} <= set(exports.names())


@pytest.mark.parametrize("name", ["yaml", "json"])
@settings(deadline=None)
@given(some=st.lists(records(), max_size=3))
def test_round_trip(name: str, some: list[Record]) -> None:
    found = exports.readable(name)
    assert found.load(found.dump(some), "best") == some


@pytest.mark.parametrize("name", ["triton", "flex", "python"])
@settings(deadline=None)
@given(some=st.lists(records(), max_size=3))
def test_generated_python_compiles_whatever_the_texts(name: str, some: list[Record]) -> None:
    compile(exports.get(name).dump(some), "exported", "exec")


@settings(deadline=None)
@given(some=st.lists(records(), max_size=3))
def test_python_module_keeps_every_value(some: list[Record]) -> None:
    kept = evaluate(exports.get("python").dump(some))["RECORDS"]
    ranked = sorted(some, key=lambda record: record.rank)
    assert [entry["config"] for entry in kept] == [record.config for record in ranked]


def test_triton_configs_evaluate() -> None:
    triton = pytest.importorskip("triton")
    text = exports.get("triton").dump([SLOW, GUESS, CUDA, FAST])
    configs = evaluate(text)["CONFIGS"]
    assert list(configs) == [Q4096, Q8192]
    fast, slow = configs[Q4096]
    assert isinstance(fast, triton.Config)
    assert fast.kwargs == {
        "BLOCK_M": 128,
        "BLOCK_N": 64,
        "USE_TMA": 1,
        "ORDER": "heavy_first",
        "PACK_GQA": 1,
    }
    assert (fast.num_warps, fast.num_stages, fast.maxnreg) == (8, 3, None)
    assert (slow.kwargs["BLOCK_M"], slow.maxnreg) == (64, 168)
    assert f"# {Q4096}: {FAST.summary}" in text
    assert f"# left out, not a Triton kernel: {Q4096}: {CUDA.summary}" in text


def test_flex_options_are_the_best_record_s() -> None:
    text = exports.get("flex").dump([SLOW, GUESS, CUDA, FAST])
    assert evaluate(text)["KERNEL_OPTIONS"] == {
        Q4096: {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3},
        Q8192: {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2},
    }
    assert "left out, it has no BLOCK_M, BLOCK_N, num_warps, num_stages" in text
    assert f"left out, not the best for {Q4096}: {SLOW.summary}" in text


def test_flex_options_are_options_of_flex_attention() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    options = evaluate(exports.get("flex").dump([FAST]))["KERNEL_OPTIONS"][Q4096]
    assert set(options) <= set(flex.FlexKernelOptions.__annotations__)


def test_python_module_serves_configs() -> None:
    config_for = evaluate(exports.get("python").dump([SLOW, GUESS, FAST]))["config_for"]
    assert config_for(Q4096) == CONFIG
    assert config_for(Q4096, "sm90") == CONFIG
    config_for(Q4096)["BLOCK_M"] = 1
    assert config_for(Q4096) == CONFIG
    with pytest.raises(LookupError, match=r"there are configs for: .*q4096.*, .*q8192"):
        config_for("fwd_q1")
    with pytest.raises(LookupError, match="on 'sm80'"):
        config_for(Q4096, "sm80")


def test_python_module_runs_without_site_packages(tmp_path: Path) -> None:
    module = tmp_path / "best.py"
    module.write_text(exports.get("python").dump([FAST]))
    code = f"import best; assert best.config_for({Q4096!r})['BLOCK_M'] == 128"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-S", "-c", code], check=True, env=environment)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("best.yaml", "yaml"),
        ("best.YML", "yaml"),
        ("out/best.json", "json"),
        ("best.py", "python"),
        ("best.triton.py", "triton"),
        ("best.flex.py", "flex"),
    ],
)
def test_a_file_s_name_says_its_format(path: str, name: str) -> None:
    assert exports.for_path(Path(path)) == name


def test_errors_name_the_formats() -> None:
    with pytest.raises(TunefaError, match="unknown format 'ymal': did you mean yaml"):
        exports.get("ymal")
    with pytest.raises(TunefaError, match=r"'best\.txt' does not say .* \.flex\.py, \.json"):
        exports.for_path(Path("best.txt"))
    with pytest.raises(TunefaError, match=r"'triton' can be written but not read: .* json, yaml"):
        exports.readable("triton")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"tunefa_schema": 1,\n"records": [', "best.json:2: not JSON"),
        ('{"tunefa_schema": 1, "tunefa_schema": 1, "records": []}', "'tunefa_schema' is there tw"),
        ('{"tunefa_schema": 1, "records": [NaN]}', "best.json: NaN"),
        ('{"tunefa_schema": 7, "records": []}', "newer tunefa (schema 7"),
        ('{"tunefa_schema": 1, "records": [{}]}', "best.json: record 1: key 'kernel' is missing"),
        ("[" * 100_000, "best.json: not JSON"),
        ("9" * 5000, "best.json: not JSON"),
        ("", "best.json:1: not JSON"),
        ("5", "best.json: not a results document"),
    ],
)
def test_broken_json_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(TunefaError) as error:
        exports.readable("json").load(text, "best.json")
    assert says in str(error.value)


def test_broken_yaml_names_the_line() -> None:
    with pytest.raises(TunefaError, match=r"^best\.yaml:2: "):
        exports.readable("yaml").load("tunefa_schema: 1\nrecords: 5\n", "best.yaml")


def test_configs_for_npus_are_those_of_triton_ascend() -> None:
    config = {"BLOCK_M": 48, "BLOCK_N": 432, "SPLIT_MASK_LOOP": 0, "MULTIBUFFER": 1,
              "TILE_MIX_VECTOR_LOOP": 2, "WORKSPACE_BUFFERS": 4, "L0C_BUFFERS": 1,
              "UNIT_FLAG": 0}  # fmt: skip
    npu = predicted(kernel="attention_fwd_ascend", arch="ascend910b3", objective="modelled",
                    config=config)  # fmt: skip
    written = exports.get("triton").dump([FAST, npu])

    class Config:
        def __init__(self, kwargs: dict[str, Any], **options: Any) -> None:
            self.kwargs, self.options = kwargs, options

    def configs(ascend: bool) -> Any:
        made = type("Config", (Config,), {"multibuffer": None} if ascend else {})
        scope: dict[str, Any] = {}
        source = written.replace("import triton\n", "")
        scope["triton"] = type("triton", (), {"Config": made})
        exec(compile(source, "exported", "exec"), scope)
        return scope["CONFIGS"]

    [there] = configs(ascend=True)[Q4096]
    assert there.kwargs == {"BLOCK_M": 48, "BLOCK_N": 432, "SPLIT_MASK_LOOP": 0}
    assert there.options == {
        "multibuffer": True, "tile_mix_vector_loop": 2, "set_workspace_multibuffer": 4,
        "limit_auto_multi_buffer_of_local_buffer": "no-l0c", "unit_flag": False,
    }  # fmt: skip
    [here] = configs(ascend=False)[Q4096]
    assert here.options["num_warps"] == 8
