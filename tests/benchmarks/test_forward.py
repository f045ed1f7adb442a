"""benchmarks/forward/: which rows are measured, what peers are asked for, what the tables say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.forward import __main__ as program
from benchmarks.forward import rows, workloads
from benchmarks.forward.rows import Row
from tunefa.compile.launch import driver
from tunefa.experiments.compare import Comparisons
from tunefa.measure.contest import Settings
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


@pytest.mark.parametrize(
    "text", ["q512_causal_w20", "q512_full_varlen", "q512_softcap", "q512_a5", "q512_full_w20"]
)
def test_what_may_be_named(text: str) -> None:
    assert points(text) == [("given", Workload.parse(text))]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to measure"),
        (["--rows", "first,last"], "'last' is none of first, fp16"),
        (["--rows", "rect", "--peers", "fa5"], "'fa5' is none of flash_attn2"),
        (["--rows", "rect", "--rounds", "0"], "--rounds start at 1"),
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
        "| workload | tunefa | SDPA cuDNN | FA2 in PyTorch | flash-attn-4 |"
        " over the best peer | MHz | W |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| b2 h16 s8192 d128 full | **700** | 640 |  | 650 | 1.076 | 1605–1980 | 700 |\n"
        "| b1 h32/8 q4096 k15360 d64 fp16 causal w1024 | 300 |  | **400** |  | 0.750 |  |  |\n\n"
        "Ahead at 1 of 2, geometric mean 0.898 (0.750 to 1.076).\n\n"
        "Without FA2 in PyTorch: b2 h16 s8192 d128 full (its relative error is 1.0e+00).\n\n"
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
    assert "Without FA2 in PyTorch: all (" in shown


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


def test_the_row_of_a_comparison() -> None:
    workload = Workload.parse("b2_h4_kv2_q64_d32_bf16_causal")
    settings = Settings("eager", rounds=3, device="cpu")
    with Comparisons(settings) as comparisons:
        found = comparisons.row(workload, ["sdpa", "cudnn"], lambda step: None)
    row = Row.of("given", found, {"fa4": "it is not installed"}, {"device": "the host"})
    assert row.tflops.keys() == {"tunefa", "sdpa"} and min(row.tflops.values()) > 0
    assert row.left_out == {
        "cudnn": "it runs on CUDA devices only",
        "fa4": "it is not installed",
    }
    assert row.chosen["kernel"] == "pytorch" and row.workload == workload
    assert Row.parse(row.line()) == row
    assert "| b2 h4/2 s64 d32 causal |" in rows.tables([row])


def test_without_a_gpu_it_is_said() -> None:
    if driver.devices():
        pytest.skip("this machine has a GPU")
    with pytest.raises(SystemExit, match="this machine has no GPU"):
        program.made_with(["cudnn"])
