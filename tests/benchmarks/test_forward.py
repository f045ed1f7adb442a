"""benchmarks/forward/: which rows are measured, what peers are asked for, what the tables say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.forward import __main__ as program
from benchmarks.forward import measure, peers, rows, workloads
from benchmarks.forward.rows import Row
from tunefa import check, reference
from tunefa.workload import Workload

ROW = Row(
    group="first",
    workload=Workload.parse("b2_h16_q8192_d128_full"),
    tflops={"tunefa": 700.0, "cudnn": 640.0, "fa4": 650.4},
    left_out={"fa2": "its relative error is 1.0e+00"},
    chosen={"kernel": "k", "config": {"BLOCK_N": 64}, "why": "default"},
    device={"sm_mhz": [1605, 1980], "power_w": [700, 700]},
    made_with={"device": "NVIDIA H200", "torch": "2.11"},
)


def points(*arguments: str) -> list[tuple[str, Workload]]:
    found: list[tuple[str, Workload]] = program.options(arguments).points
    return found


def test_the_groups_of_rows() -> None:
    counts = {name: len(workloads.group(name)) for name in program.GROUPS}
    assert counts == {"first": 36, "fp16": 12, "llama": 18, "dims": 10, "rect": 1, "window": 2}
    everything = [workload for _, workload in points("--rows", "all")]
    assert len(set(everything)) == len(everything) == 79
    shown = [str(workload) for workload in everything]
    assert shown[0] == "fwd_b32_h32_kv32_q512_k512_d64_bf16_full"
    assert "fwd_b4_h16_kv16_q4096_k4096_d128_fp16_causal" in shown
    assert "fwd_b8_h28_kv4_q16384_k16384_d128_bf16_causal" in shown
    assert "fwd_b4_h12_kv12_q4096_k4096_d160_bf16_full" in shown
    assert shown[-1] == "fwd_b1_h16_kv16_q16384_k16384_d128_bf16_causal_w1024"


def test_named_workloads_come_before_groups() -> None:
    given, rect = points("q512", "--rows", "rect")
    assert given == ("given", Workload.parse("q512"))
    assert rect == ("rect", *workloads.group("rect"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to measure"),
        (["--rows", "first,last"], "'last' is none of first, fp16"),
        (["--rows", "rect", "--peers", "fa3"], "'fa3' is none of cudnn"),
        (["--rows", "rect", "--rounds", "2"], "--rounds at 3"),
    ],
)
def test_what_cannot_be_measured_is_said(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        program.options(arguments)
    assert says in capsys.readouterr().err


def test_flex_at_some_rows() -> None:
    at = [place for place in range(9) if "flex" in program.peers_of(place, ["flex", "fa4"], 4)]
    assert at == [0, 4, 8]
    assert program.peers_of(3, ["flex", "fa4"], 4) == ["fa4"]


def test_a_row_is_read_as_it_was_written() -> None:
    row = replace(ROW, workload=replace(ROW.workload, causal=True, window=100))
    assert Row.parse(row.line()) == row
    assert "\n" not in row.line()


def test_a_table() -> None:
    behind = replace(
        ROW,
        workload=Workload.parse("b1_h32_kv8_q4096_k15360_d64_fp16_causal_w1024"),
        tflops={"tunefa": 300.0, "fa2": 400.0},
        left_out={"cudnn": "it has no sliding windows"},
        device={"watched": False},
    )
    assert rows.tables([ROW, behind]) == (
        "### bf16, 16,384 tokens, 2,048 wide\n\n"
        "| workload | tunefa | SDPA cuDNN | FlashAttention-2 | flash-attn-4 |"
        " over the best peer | MHz | W |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| b2 h16 s8192 d128 full | **700** | 640 |  | 650 | 1.076 | 1605–1980 | 700 |\n"
        "| b1 h32/8 q4096 k15360 d64 fp16 causal w1024 | 300 |  | **400** |  | 0.750 |  |  |\n\n"
        "Ahead at 1 of 2, geometric mean 0.898 (0.750 to 1.076).\n\n"
        "Without FlashAttention-2: b2 h16 s8192 d128 full (its relative error is 1.0e+00).\n\n"
        "Without SDPA cuDNN: b1 h32/8 q4096 k15360 d64 fp16 causal w1024"
        " (it has no sliding windows).\n\n"
        "device NVIDIA H200, torch 2.11.\n"
    )


def test_a_table_says_what_disturbed_it_and_who_is_never_there() -> None:
    disturbed = replace(ROW, device={**ROW.device, "disturbance": "power brake"})
    shown = rows.tables([disturbed])
    assert "Disturbed: b2 h16 s8192 d128 full, power brake." in shown
    assert "Without FlashAttention-2: all (" in shown


def test_a_workload_measured_again_counts_once_and_groups_keep_their_order() -> None:
    again = replace(ROW, tflops={"tunefa": 710.0})
    window = replace(ROW, group="window")
    shown = rows.tables([window, ROW, again])
    assert shown.index("2,048 wide") < shown.index("Sliding window")
    assert "**710**" in shown and shown.count("**700**") == 1


def test_without_a_peer_or_without_tunefa_there_is_no_ratio() -> None:
    alone, failed = replace(ROW, tflops={"tunefa": 1.0}), replace(ROW, tflops={"fa4": 1.0})
    assert alone.ratio is None and alone.best_peer is None
    assert failed.ratio is None
    assert "Ahead" not in rows.tables([alone]) + rows.tables([failed])


@pytest.mark.parametrize(
    "text",
    [
        "b1_h2_q70_k97_d16_fp32_causal",
        "b1_h2_q97_d16_fp32_causal_w40",
        "h4_kv2_q64_k97_fp32_causal_w9",
    ],
)
def test_the_mask_that_flex_gets(text: str) -> None:
    workload = Workload.parse(text)
    q, k, v = check.tensors(workload, "cpu", seed=0)[:3]
    lengths = workload.seqlen_q, workload.seqlen_k
    mask = create_block_mask(peers.visible(workload), None, None, *lengths, device="cpu")
    out: Any = flex_attention(q, k, v, block_mask=mask, enable_gqa=workload.group > 1)
    scale = workload.head_dim**-0.5
    right, _ = reference.attention(reference.Problem(q, k, v, True, scale, workload.window))
    torch.testing.assert_close(out, right)


def test_contestants_that_are_wrong_or_raise_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload.parse("b2_h8_kv2_q40_k50_d16_causal_w20")

    def right(workload: Workload, tensors: peers.Tensors) -> peers.Call:
        problem = reference.Problem(*tensors, True, workload.head_dim**-0.5, workload.window)
        return lambda: reference.attention(problem)[0]

    def wrong(workload: Workload, tensors: peers.Tensors) -> peers.Call:
        return right(replace(workload, window=None), tensors)

    def broken(workload: Workload, tensors: peers.Tensors) -> peers.Call:
        raise AssertionError("head_dim\nand more")

    monkeypatch.setattr(measure, "captured", lambda call: call)
    monkeypatch.setattr(measure, "PEERS", {"fa2": right, "flex": wrong, "fa4": broken})
    tensors = check.tensors(workload, "cpu", seed=0)[:3]
    found, left_out = measure.contestants(workload, tensors, ["fa2", "flex", "fa4"])
    assert list(found) == ["tunefa", "fa2"]
    assert left_out["flex"].startswith("its relative error is ")
    assert left_out["fa4"] == "head_dim"


@pytest.mark.parametrize("text", ["q64_causal_w8", "q64_k128_causal"])
def test_cudnn_is_not_asked_for_what_it_means_otherwise(text: str) -> None:
    workload = Workload.parse(text)
    with pytest.raises(peers.Unserved):
        peers.cudnn(workload, check.tensors(workload, "cpu")[:3])
