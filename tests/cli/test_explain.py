"""tunefa explain: which config it is about, and what is said about wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.made_here import CUDA, made_here
from tunefa.costmodel.version import model_version
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec import looked_up
from tunefa.spec.workload import Workload
from tunefa.store import results as store

CHIP = ("explain", "--arch", "sm90", "--seqlen", "8192")
ON_SM90 = (*CHIP, "--kernel", "attention_fwd_triton")


def default() -> dict[str, object]:
    kernel = kernels.load("attention_fwd_triton")
    return kernel.default(Workload.of(seqlen_q=8192), archs.load("sm90"))


def test_what_no_memory_holds_is_refused(run: Run) -> None:
    said = run("explain", "--arch", "h100", "--seqlen", "1000000000000", code=1).stderr
    assert "NVIDIA H100 80GB HBM3 has 80.0 GiB" in said


def test_the_rest_of_a_config_is_the_default(run: Run) -> None:
    result = run(*ON_SM90, "-c", "BLOCK_M=128, num_warps=8", "--no-compile", "--json")
    found = json.loads(result.stdout)
    assert found["config"] == {**default(), "BLOCK_M": 128, "num_warps": 8}
    assert list(found["config"]) == list(default())
    assert found["origin"].endswith(" from the default")
    assert found["resources_from"] == "lower bounds"


def test_without_a_config_it_is_what_the_runtime_would_choose(run: Run) -> None:
    found = json.loads(run(*ON_SM90, "--no-compile", "--json").stdout)
    assert found["config"] == default()
    assert found["origin"].startswith("default: ")
    config = {**default(), "num_warps": 8, "BLOCK_M": 128}
    predicted: dict[str, Any] = {"device": None, "objective": "predicted", "mode": None}
    store.default_store().add(made_here("q8192", config=config, **predicted))
    found = json.loads(run(*ON_SM90, "--no-compile", "--json").stdout)
    assert found["config"] == default(), "it was not compared with the measured default"
    compared: dict[str, Any] = {"certificate": {"known": {}}, **predicted}
    versions = {"model": model_version("predicted")}
    store.default_store().add(made_here("q8192", versions, config=default(), **compared))
    found = json.loads(run(*ON_SM90, "--no-compile", "--json").stdout)
    assert found["config"] == default()
    assert found["origin"].startswith("predicted: the cost model's choice on sm90")


def test_an_exact_record_of_an_absent_device_is_called_exact(run: Run) -> None:
    asked = ("explain", "--arch", "h200", "-w", "q1000", "--no-compile", "--json")
    exact = "exact: measured on NVIDIA H200 for fwd_b1_h32_kv8_q1000_k1000_d128_bf16_causal"
    store.default_store().add(made_here("q1000"))
    assert json.loads(run(*asked).stdout)["origin"] == exact
    workload = Workload.parse("q1000")
    config = kernels.load(CUDA).default(workload, archs.load("sm90"))
    other = {"compiler": "nvrtc 12.0.1"}
    parts: dict[str, Any] = {"kernel": CUDA, "config": config, "mode": "eager"}
    store.default_store().add(made_here("q1000", versions=other, **parts))
    said = json.loads(run(*asked).stdout)["origin"]
    assert said.startswith(f"{exact}; measured with NVRTC 12.0.1, and this machine has ")
    assert said.endswith(": unconfirmed, `tunefa verify` confirms it")


def test_attention_over_a_cache_has_the_config_that_its_calls_look_up(run: Run) -> None:
    asked = ("explain", "--arch", "h200", "-w", "decode_b1_k2048", "--no-compile", "--json")
    usual = Workload.parse("decode_b16_k8192")
    kernel = kernels.load("attention_decode_triton")
    config = kernel.default(usual, archs.load("sm90"))
    store.default_store().add(made_here(str(usual), kernel=kernel.name, config=config, mode="step"))
    said = json.loads(run(*asked).stdout)
    assert said["workload"] == str(Workload.parse("decode_b1_k2048"))
    assert said["origin"] == f"exact: measured on NVIDIA H200 for {usual}"


def test_few_queries_are_explained_over_a_cache(run: Run) -> None:
    few = Workload.parse("b1_q1_k8192")
    asked = ("explain", "--arch", "h200", "-w", str(few), "--no-compile", "--json")
    found = run(*asked)
    assert json.loads(found.stdout)["workload"] == str(looked_up.over_cache(few))
    assert f"{few}: flash_attention runs so few queries" in found.stderr
    own = run(*asked, "--kernel", "attention_fwd_triton")
    assert json.loads(own.stdout)["workload"] == str(few) and "so few" not in own.stderr


def test_a_record_of_another_source_is_not_the_runtime_s_choice(run: Run) -> None:
    store.default_store().add(made_here("q1000", versions={"source_hash": "0123"}, mode="eager"))
    asked = ("explain", "--arch", "h200", "-w", "q1000", "--no-compile", "--json")
    assert not json.loads(run(*asked).stdout)["origin"].startswith("exact: ")


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (
            "BLOKC_M=128",
            "unknown parameter of attention_fwd_triton 'BLOKC_M': did you mean BLOCK_M?",
        ),
        ("BLOCK_M", "config 'BLOCK_M' is not NAME=VALUE, such as BLOCK_M=128"),
        ("BLOCK_M=100", "unknown value of BLOCK_M '100'"),
        ("USE_TMA=tma", "unknown value of USE_TMA 'tma' (known: 0, 1)"),
        ("BLOCK_M=64,BLOCK_M=64", "config gives BLOCK_M twice: leave one out"),
    ],
)
def test_mistakes_in_a_config(run: Run, config: str, error: str) -> None:
    assert error in run(*ON_SM90, "-c", config, code=1).stderr


@pytest.mark.parametrize(
    ("config", "kernel"),
    [
        ("BLOCK_M=64", "attention_fwd_triton"),
        ("DEFER_ROW_SUM=1", "attention_fwd_gluon_sm90"),
        ("INTRA_WG_OVERLAP=1", "attention_fwd_cuda_sm90"),
        ("BLOCK_N=32", "attention_fwd_triton"),  # all have BLOCK_N, one this value
    ],
)
def test_a_config_is_that_of_the_kernel_whose_parameters_it_names(
    run: Run, config: str, kernel: str
) -> None:
    found = json.loads(run(*CHIP, "-c", config, "--no-compile", "--json").stdout)
    name, value = config.split("=")
    assert (found["kernel"], found["config"][name]) == (kernel, int(value))


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ("BLOKC_M=1", "unknown parameter of attention_fwd_cuda_sm90 or attention_fwd_gluon_sm90"),
        (
            "BLOCK_M=64,maxnreg=0,WARPGROUPS=2",
            "unknown parameter of attention_fwd_triton 'WARPGROUPS'",
        ),
        ("WARPGROUPS=9", "unknown value of WARPGROUPS '9'"),
    ],
)
def test_a_config_of_no_kernel(run: Run, config: str, error: str) -> None:
    assert error in run(*CHIP, "-c", config, code=1).stderr


def test_a_kernel_with_a_program_per_sm(run: Run) -> None:
    found = json.loads(
        run(*CHIP, "-c", "WARPGROUPS=1,BLOCK_N=64,DEFER_ROW_SUM=1", "--no-compile", "--json").stdout
    )
    assert found["blocks_per_sm"] == 1 and found["threads"] == 256  # consumer and producer
    assert found["blocks_limiter"] == "grid"
    out = run(*CHIP, "-c", "WARPGROUPS=1,BLOCK_N=64,DEFER_ROW_SUM=1", "--no-compile").stdout
    assert "limited by the grid" in out and "no more CTAs than there are SMs" in out


def test_refusing_rules_are_named(run: Run) -> None:
    config = "BLOCK_M=16,num_warps=8"
    found = json.loads(run(*ON_SM90, "-c", config, "--no-compile", "--json").stdout)
    assert "a warp needs at least 16 query rows" in found["refused_by"]
    out = run(*ON_SM90, "-c", config, "--no-compile").stdout
    assert "refused: a warp needs at least 16 query rows" in out


@pytest.mark.parametrize("columns", ["80", "120"])
def test_report_fits_the_terminal(run: Run, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = run(*ON_SM90, "--no-compile").stdout
    report = out[: out.index("Next: ")]
    assert max(map(len, report.splitlines())) <= int(columns)
    for words in ("shared memory", "An SM holds", "tensor", "exp2", "issue", "smem", "Predicted"):
        assert words in report


def test_next_command_compiles_the_same_config(run: Run) -> None:
    out = run(*ON_SM90, "--no-compile").stdout
    words = out.splitlines()[-1].split()
    assert words[:2] == ["tunefa", "explain"]
    found = json.loads(run(*words[1:], "--json").stdout)
    assert found["config"] == default()
    assert found["resources_from"] == "compiler"
    assert found["resources"]["registers"] > 0
    assert found["compile_failure"] is None


def test_no_config_needs_a_kernel_that_serves(run: Run) -> None:
    error = run("explain", "--arch", "sm80", "-w", "q64_w32", code=1).stderr
    assert "no kernel serves fwd_b1_h32_kv8_q64_k64_d128_bf16_causal_w32 on sm80 (" in error


def test_the_work_is_said_and_the_roofline_is_a_picture(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "roofline.png"
    words = ("explain", "--arch", "h200", "--seqlen", "8192", "--no-compile")
    done = run(*words, "--plot", str(path))
    assert "2 (D + Dv) x visible pairs = 2 x (128 + 128) x 1 x 32 heads x" in done.stdout
    assert path.read_bytes().startswith(b"\x89PNG")
    assert json.loads(run(*words, "--json").stdout)["flops"] == 549822922752
    said = run(*words, "--plot", str(tmp_path / "none" / "a.png"), code=1).stderr
    assert "cannot write" in said and "No such file" in said
    two = ("explain", "--arch", "h200", "-w", "q512", "-w", "q256", "--plot", str(path))
    assert "--plot draws one workload, and these are 2" in run(*two, code=2).stderr
