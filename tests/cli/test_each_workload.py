"""Commands for several workloads: one after the other, and what no kernel serves is named."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run
from tunefa.cli.each_workload import of_its_op
from tunefa.errors import TunefaError
from tunefa.spec.workload import Workload

WINDOW = "fwd_b1_h16_kv8_q8192_k8192_d256_bf16_causal_w4096_softcap"
GLOBAL = "fwd_b1_h16_kv8_q8192_k8192_d256_bf16_causal_softcap"
SPACE = ("space", "--arch", "sm90", "--seqlen", "8192")
SMALL = ("--kernel", "attention_fwd_cuda_sm80")
"""A kernel whose space is counted in an instant."""


def workloads(run: Run, *arguments: str) -> list[str]:
    """The workloads that `tunefa space` shows for the arguments."""
    said = json.loads(run(*arguments, "--json").stdout)
    return [each["workload"] for each in said.get("workloads", [said])]


def test_each_kind_of_layers_is_a_workload(run: Run) -> None:
    said = run(*SPACE, "--model", "gemma2-9b")
    sliding = "gemma2-9b, sliding window of 4,096 keys with soft-capped scores (21 of 42 layers)"
    assert f"[1/2] {sliding}: {WINDOW}\n" in said.stderr
    assert f"tunefa search --arch sm90 -w {GLOBAL}\n" in said.stdout
    assert said.stdout.count("Next: search it") == 2


def test_explain_explains_each(run: Run) -> None:
    asked = ("explain", "--arch", "sm90", "--seqlen", "8192", "--no-compile", "--json")
    said = json.loads(run(*asked, "--model", "gemma2-9b").stdout)
    assert [each["workload"] for each in said["workloads"]] == [WINDOW, GLOBAL]
    (one,) = [json.loads(run(*asked, "--model", "gemma2-9b", "--window", "4k").stdout)]
    assert one["workload"] == WINDOW


def test_several_workloads_in_their_order_each_once(run: Run) -> None:
    asked = ("space", "--arch", "sm90", "-w", "q64", "-w", "q32_full", "-w", "b1_q64", *SMALL)
    assert [text.split("_")[4] for text in workloads(run, *asked)] == ["q64", "q32"]
    both = workloads(run, *SPACE, "--model", "llama3-8b", "--model", "qwen3-8b", *SMALL)
    assert both == ["fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal"]


def test_a_window_that_hides_no_key_is_one_workload(run: Run) -> None:
    said = run("space", "--arch", "sm90", "--seqlen", "4096", "--model", "gemma2-9b")
    (line,) = said.stderr.splitlines()
    assert line.startswith("gemma2-9b, sliding window of 4,096 keys")
    assert " and gemma2-9b, global attention with soft-capped scores (21 of 42 layers): " in line


def test_layers_that_no_kernel_serves_are_named(run: Run) -> None:
    asked = ("space", "--seqlen", "8192", "--model", "gemma3-4b", "--arch")
    said = run(*asked, "sm80", *SMALL)
    assert (
        "gemma3-4b, sliding window of 1,024 keys (29 of 34 layers): left out, no ke" in said.stderr
    )
    assert "fwd_b1_h8_kv4_q8192_k8192_d256_bf16_causal on " in said.stdout
    error = run("space", "--seqlen", "8k", "--model", "gemma2-9b", "--arch", "sm80", code=1).stderr
    assert error.count("left out, no kernel serves") == 2
    error = run("space", "--arch", "sm80", "-w", "q64", "-w", "q64_w32", code=1).stderr
    assert "Error: no kernel serves fwd_b1_h32_kv8_q64_k64" in error


def test_kernels_of_several_ops_serve_their_own() -> None:
    names, both = ("attention_fwd_triton", "matmul_triton"), ("q64", "matmul_m64")
    found = [of_its_op(names, Workload.parse(text)) for text in both]
    assert found == [("attention_fwd_triton",), ("matmul_triton",)]
    assert of_its_op(names[:1], Workload.parse("matmul_m64")) == names[:1]
    with pytest.raises(TunefaError, match="unknown kernel 'attention'"):
        of_its_op(["attention"], Workload.parse("q64"))
