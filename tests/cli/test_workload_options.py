"""The words for workloads and chips: what they mean, and what is said about wrong ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click
import pytest

from tests.cli.conftest import Run
from tests.support.sample_records import measured, predicted
from tunefa.cli import targets
from tunefa.cli.targets import ChosenTarget
from tunefa.cli.workload_options import Selection
from tunefa.compile.launch.driver import SeenDevice
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import model_preset
from tunefa.spec.target import Target
from tunefa.store.record import Record

H200 = SeenDevice("NVIDIA H200", (9, 0), 132, 150_000_000_000)
LLAMA, GEMMA = model_preset.load("llama3-8b"), model_preset.load("gemma2-9b")
SERVER = SeenDevice("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), 188, 96 * 2**30)
LAPTOP = SeenDevice("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), 76, 16_000_000_000)


def asked(run: Run, *arguments: str) -> str:
    """The workload that the arguments mean."""
    result = run("space", "--arch", "sm90", *arguments, "--json")
    return str(json.loads(result.stdout)["workload"])


@pytest.mark.parametrize(
    ("arguments", "workload"),
    [
        ("--seqlen 8192", "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal"),
        ("--seqlen 8k", "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal"),
        ("--seqlen 1 --seqlen-k 8k", "fwd_b1_h32_kv8_q1_k8192_d128_bf16_causal"),
        ("--seqlen 64 --heads 16", "fwd_b1_h16_kv16_q64_k64_d128_bf16_causal"),
        ("--seqlen 64 --kv-heads 4", "fwd_b1_h32_kv4_q64_k64_d128_bf16_causal"),
        ("--seqlen 64 --head-dim 96 --dtype fp16", "fwd_b1_h32_kv8_q64_k64_d96_fp16_causal"),
        ("--seqlen 8k --window 1k", "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal_w1024"),
        ("--seqlen 8k --window 8k", "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal"),
        ("--seqlen 8k --full --window 1k", "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_full_w1024"),
        (
            "--seqlen 8k --window-right 9 --window 2",
            "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_full_w2_a9",
        ),
        ("--seqlen 8k --softcap", "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal_softcap"),
        ("--seqlen 8k --varlen", "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal_varlen"),
        (
            "--batch 8 --seqlen 2k --seqlen-k 8k --varlen --page-size 64 --sinks",
            "prefill_b8_h32_kv8_q2048_k8192_d128_bf16_causal_page64_sinks_varlen",
        ),
        (
            "--model llama3-8b --seqlen 512 --page-size 16",
            "prefill_b1_h32_kv8_q512_k512_d128_bf16_causal_page16",
        ),
        ("--seqlen 8k --backward", "bwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal"),
        (
            "--seqlen 8k --backward --deterministic --full",
            "bwd_b1_h32_kv8_q8192_k8192_d128_bf16_full_deterministic",
        ),
        (
            "--model llama3-8b --seqlen 4k --backward",
            "bwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal",
        ),
        ("--seqlen 64 --dtype bfloat16", "fwd_b1_h32_kv8_q64_k64_d128_bf16_causal"),
        ("--seqlen 64 --dtype float16", "fwd_b1_h32_kv8_q64_k64_d128_fp16_causal"),
        ("--seqlen 64 --dtype fp8", "fwd_b1_h32_kv8_q64_k64_d128_e4m3_causal"),
        ("-w q4096_full", "fwd_b1_h32_kv8_q4096_k4096_d128_bf16_full"),
        (
            "--model llama3-8b --seqlen 8192 --batch 4 --full --dtype fp16 --seqlen-k 15360",
            "fwd_b4_h32_kv8_q8192_k15360_d128_fp16_full",
        ),
        (
            "--model mistral-7b-v0.1 --seqlen 8k",
            "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal_w4096",
        ),
        (
            "--model gemma3-4b --seqlen 8k --window 1024",
            "fwd_b1_h8_kv4_q8192_k8192_d256_bf16_causal_w1024",
        ),
        (
            "--model gemma2-9b --seqlen 4k --heads 16 --softcap",
            "fwd_b1_h16_kv8_q4096_k4096_d256_bf16_causal_softcap",
        ),
        (
            "--decode --mla --heads 16 --seqlen-k 8k --page-size 64",
            "decode_b1_h16_kv1_q1_k8192_d576_dv512_bf16_causal_page64_mla",
        ),
        (
            "--decode --batch 16 --seqlen-k 8k --page-size 64 --shared-prefix",
            "decode_b16_h32_kv8_q1_k8192_d128_bf16_causal_page64_prefix",
        ),
        ("--model GPT2 --seqlen 1024", "fwd_b1_h12_kv12_q1024_k1024_d64_bf16_causal"),
    ],
)
def test_options_name_a_workload(run: Run, arguments: str, workload: str) -> None:
    assert asked(run, *arguments.split()) == workload


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--seqlen 0", "--seqlen is '0': give a whole number from 1, such as 8192 or 8k (8192)"),
        ("--seqlen -1", "--seqlen is '-1': give a whole number from 1"),
        ("--seqlen 8k1", "--seqlen is '8k1': give a whole number from 1"),
        ("--seqlen 8 --window 0", "--window is '0': give a whole number from 1"),
        ("--seqlen 64 --causal --window-right 8", "window_right is 8 with a causal mask"),
        ("--seqlen 8 --window-right 0", "--window-right is '0': give a whole number from 1"),
        ("--seqlen 8 --batch 1.5", "--batch is '1.5': give a whole number"),
        (
            "--seqlen 64 --heads 32 --kv-heads 5",
            "heads 32 is not a multiple of heads_kv 5: each KV head serves equally many",
        ),
        ("--seqlen 64 --head-dim 300", "head_dim 300 is above 256, the largest"),
        ("--seqlen 64 --head-dim 8", "head_dim 8 is below 16, the smallest"),
        ("--seqlen 64 --dtype bf61", "unknown dtype 'bf61': did you mean bf16?"),
        ("--seqlen 64 --model lama3-8b", "unknown model 'lama3-8b': did you mean llama3-8b or "),
        ("--seqlen 64 --arch sm9", "unknown arch or device 'sm9': did you mean sm90 or sm89?"),
        ("--seqlen 64 --arch sm90 --device a100", "unknown sm90 device 'a100'"),
        ("--seqlen 64 --kernel atention_fwd_triton", "did you mean attention_fwd_triton?"),
        ("-w b1_q12x", "workload 'b1_q12x'"),
        ("-w b1", "workload 'b1': seqlen_q is missing"),
        (
            "-w q64_w32 --arch sm80",
            "no kernel serves fwd_b1_h32_kv8_q64_k64_d128_bf16_causal_w32 on sm",
        ),
    ],
)
def test_mistakes_are_one_sentence(run: Run, arguments: str, error: str) -> None:
    result = run("space", *arguments.split(), code=1)
    (said,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert error in said
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h20o", ": did you mean h20 or h200?"),
        ("mi300", ": name one of these"),
        ("", ": name one of these"),
    ],
)
def test_an_unknown_arch_is_answered_with_a_line_for_each(run: Run, name: str, hint: str) -> None:
    said, *lines = run("space", "--seqlen", "64", "--arch", name, code=1).stderr.splitlines()
    assert said == f"Error: unknown arch or device {name!r}{hint}"
    assert [line.split()[0] for line in lines] == archs.names()
    assert "  sm100        b200, gb200" in lines and "  ascend910b1" in lines


def test_a_workload_may_say_backward_twice(run: Run) -> None:
    twice, once = (run("space", "--arch", "sm90", "-w", "bwd_q64", *more) for more in
                   (["--backward"], []))  # fmt: skip
    assert twice.stdout == once.stdout and "attention_bwd" in once.stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("", "no workload: give --seqlen"),
        ("--batch 4", "no workload: give --seqlen"),
        (
            "-w q64 --batch 4 --full",
            "-w names the whole workload: leave out --batch, --causal/--full",
        ),
        ("-w q64 --backward", "-w names the whole workload: leave out --backward"),
        ("-w q64 --model gpt2", "-w names the whole workload: leave out --model"),
        (
            "--seqlen 64 --model gpt2 --kv-heads 4",
            "--model gpt2 has heads_kv 12: leave out --kv-heads",
        ),
        (
            "--seqlen 8k --model gemma3-4b --window 512",
            "--model gemma3-4b has window 1024 or none: leave out --window",
        ),
        ("--seqlen 8k --model llama3-8b --softcap", "--model llama3-8b has softcap False: leave"),
        ("--model gemma2-9b", "no workload: give --seqlen"),
        ("--seqlen 64 --arch h100 --device h200", "--arch h100 is the device NVIDIA H100"),
    ],
)
def test_options_that_contradict_each_other_are_wrong_usage(
    run: Run, arguments: str, error: str
) -> None:
    assert error in " ".join(run("space", *arguments.split(), code=2).stderr.split())


def test_dtype_that_the_arch_lacks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    arch = archs.load("sm80")
    old = replace(arch, tensor_flops_per_clock_per_sm={"fp16": 1024.0})
    chosen = ChosenTarget(Target(old, old.device()), present=False)
    monkeypatch.setattr(targets, "choose", lambda *_: chosen)
    error = run("search", "--seqlen", "64", "--dtype", "bf16", code=1).stderr
    assert "attention_fwd_triton: sm80 has no bf16" in error


def test_without_a_device_sm90_is_taken_and_said(run: Run) -> None:
    result = run("space", "--seqlen", "8192")
    assert "on sm90" in result.stdout
    assert (
        result.stderr
        == "No GPU in this machine and no --arch: the target is NVIDIA H100 80GB HBM3 (sm90).\n"
    )


@pytest.mark.parametrize(
    ("named", "there", "expected"),
    [
        ((None, None), [H200], ("NVIDIA H200", True)),
        (("sm90", None), [H200], ("NVIDIA H200", True)),
        (("h200", None), [H200], ("NVIDIA H200", True)),
        (("h200", "h200"), [], ("NVIDIA H200", False)),
        ((None, "h200"), [], ("NVIDIA H200", False)),
        (("h100", None), [H200], ("NVIDIA H100 80GB HBM3", False)),
        (("sm90", "h100"), [H200], ("NVIDIA H100 80GB HBM3", False)),
        (("sm80", None), [H200], ("NVIDIA A100-SXM4-80GB", False)),
        ((None, None), [LAPTOP], ("NVIDIA GeForce RTX 4090 Laptop GPU", True)),
        (("rtx pro 6000", None), [SERVER], (SERVER.name, True)),
    ],
)
def test_what_can_be_measured(
    named: tuple[str | None, str | None],
    there: list[SeenDevice],
    expected: tuple[str, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(targets, "seen", lambda: there)
    target, present = targets.choose(*named)
    assert (target.device.name, present) == expected


def test_a_product_without_an_entry_keeps_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "seen", lambda: [LAPTOP])
    target, _ = targets.choose(None, None)
    assert (target.arch.name, target.device.sms) == ("sm89", 76)


def test_a_device_of_an_unknown_arch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "seen", lambda: [SeenDevice("NVIDIA V100", (7, 0), 80, 0)])
    with pytest.raises(TunefaError, match="NVIDIA V100 is sm70, which tunefa does not know"):
        targets.choose(None, None)


@pytest.mark.parametrize(
    ("selection", "record", "chosen"),
    [
        (Selection(), measured(), True),
        (Selection(arch="sm90"), predicted(), True),
        (Selection(arch="sm80"), measured(), False),
        (Selection(arch="h200"), measured(), True),
        (Selection(arch="h200"), measured(device="NVIDIA H200 NVL"), False),
        (Selection(device="h100"), measured(), False),
        (Selection(device="h200"), predicted(), True),
        (Selection(arch="h100"), predicted(), True),
        (Selection(arch="a100"), predicted(), False),
        (Selection(arch="h200"), measured(device="NVIDIA Unheard Of"), False),
        (Selection(texts=("q4096",)), measured(), True),
        (Selection(texts=("q4096_full",)), measured(), False),
        (Selection(texts=("q4096_full", "q4096")), measured(), True),
        (Selection(models=(LLAMA,)), measured(), True),
        (Selection(models=(GEMMA,)), measured(), False),
        (Selection(models=(GEMMA, LLAMA)), measured(), True),
        (Selection(models=(GEMMA,)), measured("b2_h16_kv8_q8192_d256_w4096_softcap"), True),
        (Selection(models=(GEMMA,)), measured("b2_h16_kv8_q8192_d256_softcap"), True),
        (Selection(models=(GEMMA,)), measured("b2_h16_kv8_q8192_d256"), False),
        (Selection((), {"causal": False}, (LLAMA,)), measured("q4096_full"), True),
        (Selection(fields={"head_dim": 128}), measured(), True),
        (Selection(fields={"causal": False}), measured(), False),
        (Selection(fields={"window_left": 511}), measured(), False),
        (Selection(fields={"varlen": True}), measured(), False),
        (Selection(fields={"varlen": True}), measured("fwd_q4096_varlen"), True),
        (Selection(fields={"window_left": 511}), measured("fwd_q4096_w512"), True),
        (Selection(fields={"softcap": True}), measured(), False),
        (Selection(fields={"softcap": True}), measured("fwd_q4096_softcap"), True),
        (Selection(fields={"seqlen_q": 4096}), measured("fwd_q4096_k8192"), False),
    ],
)
def test_records_are_narrowed_by_what_is_given(
    selection: Selection, record: Record, chosen: bool
) -> None:
    assert selection.selects(record) is chosen


def test_contradiction_is_a_usage_error_for_lists_too() -> None:
    options: dict[str, Any] = {"arch": "h100", "device": "h200"}
    with pytest.raises(click.UsageError):
        Selection(**options).selects(measured())
