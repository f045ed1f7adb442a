"""`--workloads` and `--top`."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

import tunefa
from tunefa.cli.traced_workloads import selected
from tunefa.cli.workload_options import Selection
from tunefa.spec.workload import Workload


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "workloads.yaml"
    made.write_text("workloads:\n- {workload: q64, weight: 1}\n- {workload: q128, weight: 2}\n")
    return made


def test_the_heaviest_come_first(path: Path) -> None:
    selection = Selection(arch="sm90")
    assert selected(selection, None, None) is selection
    both = [Workload.parse("q128"), Workload.parse("q64")]
    assert selected(selection, path, None).workloads == both
    assert selected(selection, path, 1).workloads == both[:1]
    assert selected(selection, path, 1).arch == "sm90"


def test_what_no_kernel_serves_is_left_out(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    e4m3 = "- {workload: q64_d128_e4m3, weight: 9}\n"
    path.write_text(path.read_text() + e4m3)
    found = selected(Selection(arch="sm80"), path, 1).workloads
    assert found == [Workload.parse("q128")]
    assert "e4m3_causal: left out, no kernel serves" in capsys.readouterr().err
    path.write_text("workloads:\n" + e4m3)
    with pytest.raises(
        tunefa.TunefaError, match=r"no kernel serves a workload of .* on NVIDIA A100"
    ):
        selected(Selection(arch="sm80"), path, None)


def test_options_that_do_not_go_together(path: Path) -> None:
    with pytest.raises(click.UsageError, match="--top is for --workloads"):
        selected(Selection(arch="sm90"), None, 3)
    with pytest.raises(click.UsageError, match="--workloads names the workloads"):
        selected(Selection(texts=("q64",)), path, None)


def test_workloads_that_share_a_config_are_one(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over_caches = "- {workload: decode_b1_k512, weight: 3}\n- {workload: decode_k4k, weight: 0.5}\n"
    path.write_text(path.read_text() + over_caches)
    usual, long = Workload.parse("decode_b16_k8192"), Workload.parse("q128")
    assert selected(Selection(arch="sm90"), path, 2).workloads == [usual, long]
    assert capsys.readouterr().err.startswith(
        f"{Workload.parse('decode_b1_k512')} and 1 more are searched as {usual}: "
    )


def test_workloads_that_share_a_config_count_together(path: Path) -> None:
    """None of the three took the most time alone."""
    over_caches = [f"- {{workload: decode_k{keys}, weight: 1.5}}\n" for keys in ("1k", "2k", "4k")]
    path.write_text(path.read_text() + "".join(over_caches))
    found = selected(Selection(arch="sm90"), path, 1).workloads
    assert found == [Workload.parse("decode_b16_k8192")]


def test_what_took_less_than_the_heaviest_is_not_named(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text(path.read_text() + "- {workload: q64_d128_e4m3, weight: 1.5}\n")
    assert len(selected(Selection(arch="sm80"), path, 1).workloads) == 1
    assert capsys.readouterr().err == ""
    assert len(selected(Selection(arch="sm80"), path, 2).workloads) == 2
    assert "left out" in capsys.readouterr().err


def test_what_is_left_out_counts_together_too(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """3 s are more than the 2 s of the heaviest workload that a kernel serves."""
    caches = [
        f"- {{workload: decode_k{keys}_e4m3cache, weight: 1}}\n" for keys in ("1k", "2k", "4k")
    ]
    path.write_text(path.read_text() + "".join(caches))
    assert selected(Selection(arch="sm80"), path, 1).workloads == [Workload.parse("q128")]
    assert capsys.readouterr().err.count("left out") == 3
