"""benchmarks/forward/: which rows are measured, what peers are asked for, what the tables say."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.forward import __main__ as program
from benchmarks.forward import measure, peers, rows, workloads
from benchmarks.forward.rows import Row
from tunefa.measure import check, reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

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
    assert counts == {
        **{"first": 36, "fp16": 12, "llama": 18, "dims": 10, "rect": 1, "window": 2},
        "packed": 8,
    }
    everything = [workload for _, workload in points("--rows", "all")]
    assert len(set(everything)) == len(everything) == 87
    shown = [str(workload) for workload in everything]
    assert shown[0] == "fwd_b32_h32_kv32_q512_k512_d64_bf16_full"
    assert "fwd_b4_h16_kv16_q4096_k4096_d128_fp16_causal" in shown
    assert "fwd_b8_h28_kv4_q16384_k16384_d128_bf16_causal" in shown
    assert "fwd_b4_h12_kv12_q4096_k4096_d160_bf16_full" in shown
    assert "fwd_b1_h16_kv16_q16384_k16384_d128_bf16_causal_w1024" in shown
    assert shown[-1] == "fwd_b32_h32_kv8_q4000_k4000_d128_bf16_causal_varlen"


def test_packed_rows_are_what_their_title_says() -> None:
    assert workloads.TITLES["packed"] == "Packed sequences: 32 of 125 to 4,000 tokens"
    for workload in workloads.group("packed"):
        rows, keys = zip(*workload.lengths, strict=True)
        assert rows == keys
        assert (len(rows), min(rows), max(rows)) == (32, 125, 4000)


def test_named_workloads_come_before_groups() -> None:
    given, rect = points("q512", "--rows", "rect")
    assert given == ("given", Workload.parse("q512"))
    assert rect == ("rect", *workloads.group("rect"))


@pytest.mark.parametrize("text", ["q512_causal_w20", "q512_full_varlen", "q512_k700_varlen"])
def test_what_may_be_named(text: str) -> None:
    assert points(text) == [("given", Workload.parse(text))]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("q512_softcap", "has a soft-cap or keys beyond the diagonal"),
        ("q512_softcap_varlen", "has a soft-cap or keys beyond the diagonal"),
        ("q512_a5", "has a soft-cap or keys beyond the diagonal"),
        ("q512_full_w20", "has a window and is packed or not causal"),
        ("q512_causal_w20_varlen", "has a window and is packed or not causal"),
    ],
)
def test_what_peers_are_not_called_for_is_said(
    text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        program.options([text])
    assert says in capsys.readouterr().err


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
    row = replace(ROW, workload=replace(ROW.workload, causal=True, window_left=99))
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


def test_a_table_says_which_rows_are_packed() -> None:
    row = replace(ROW, workload=Workload.parse("b32_h32_kv8_q4000_d64_full_varlen"))
    assert Row.parse(row.line()) == row
    assert "| b32 h32/8 s4000 d64 full varlen | **700** |" in rows.tables([row])


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
    right, _ = reference.attention(AttentionInputs(q, k, v, True, scale, workload.window_left))
    torch.testing.assert_close(out, right)


def test_contestants_that_are_wrong_or_raise_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload.parse("b2_h8_kv2_q40_k50_d16_causal_w20")

    def right(workload: Workload, tensors: peers.Tensors) -> peers.Call:
        q, k, v = tensors
        inputs = AttentionInputs(q, k, v, True, workload.head_dim**-0.5, workload.window_left)
        return lambda: reference.attention(inputs)[0]

    def wrong(workload: Workload, tensors: peers.Tensors) -> peers.Call:
        return right(replace(workload, window_left=None), tensors)

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


@pytest.fixture
def peers_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the reference where peers of packed sequences are found, and captures no call."""

    def fa2(*arguments: Any) -> tuple[Any, None]:
        *inputs, dropout, causal, debug = arguments
        assert (dropout, debug) == (0.0, False)
        return right(inputs, causal), None

    def fa4(q: Any, k: Any, v: Any, *, causal: bool, **named: Any) -> tuple[Any, None]:
        names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
        assert named.keys() == set(names)
        return right([q, k, v, *(named[name] for name in names)], causal), None

    def right(given: Sequence[Any], causal: bool) -> Any:
        q, k, v, cu_seqlens_q, cu_seqlens_k, *longest = given
        assert longest == [int(each.diff().max()) for each in (cu_seqlens_q, cu_seqlens_k)]
        scale = q.shape[2] ** -0.5
        cu_seqlens = cu_seqlens_q, cu_seqlens_k
        inputs = AttentionInputs(q, k, v, causal, scale, cu_seqlens=cu_seqlens)
        return reference.attention(inputs)[0]

    cute: Any = ModuleType("flash_attn.cute")
    cute.flash_attn_varlen_func = fa4
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    forward = SimpleNamespace(default=fa2)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", forward)
    monkeypatch.setattr(measure, "captured", lambda call: call)


@pytest.mark.usefixtures("peers_on_the_host")
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_contestants_of_packed_sequences(mask: str) -> None:
    workload = Workload.parse(f"b3_h8_kv2_q40_k50_d16_{mask}_varlen")
    tensors = check.tensors(workload, "cpu", seed=0)
    found, left_out = measure.contestants(workload, tensors, list(peers.PEERS))
    assert list(found) == ["tunefa", "fa2", "fa4"]
    assert left_out == dict.fromkeys(["cudnn", "flex"], "it is not compared on packed sequences")


@pytest.mark.usefixtures("peers_on_the_host")
def test_all_packed_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(workload: Workload, tensors: peers.Tensors) -> peers.Call:
        out = peers.fa2_packed(workload, tensors)().clone()
        out[-1] = 0.0
        return lambda: out

    monkeypatch.setattr(measure, "PACKED_PEERS", {"fa2": wrong})
    workload = Workload.parse("b3_h2_q40_d16_varlen")
    tensors = check.tensors(workload, "cpu", seed=0)
    found, left_out = measure.contestants(workload, tensors, ["fa2"])
    assert list(found) == ["tunefa"]
    assert left_out["fa2"].startswith("its relative error is ")


@pytest.mark.parametrize(
    ("kernel", "text", "why"),
    [
        ("attention_fwd_cuda_sm80", "q40_d64_varlen", "it does not support packed sequences"),
        ("attention_fwd_triton", "q40_d64_varlen", "it does not support packed sequences"),
        ("attention_fwd_cuda_sm80", "q40_d64_w20", "it does not support sliding windows"),
    ],
)
def test_a_kernel_runs_no_workload_that_it_does_not_serve(
    kernel: str, text: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chip = SimpleNamespace(target=Target.named("sm90"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(measure, "Chip", SimpleNamespace(of=lambda device: chip))
    workload = Workload.parse(text)
    found, left_out = measure.contestants(workload, check.tensors(workload, "cpu"), [], kernel)
    assert not found
    assert left_out == {"tunefa": why}
