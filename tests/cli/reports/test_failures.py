"""tunefa/cli/reports/failures.py: what died of what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.canned_search import CONFIG
from tests.support.sample_journals import written
from tunefa.spec.trial import Trial
from tunefa.spec.workload import Workload

LONG = "ptxas fatal: " + "registers and more registers " * 30

OURS = "attention_fwd_triton"


@pytest.fixture
def journals(home: Path) -> list[Path]:
    """Three: sm90, sm90 with another kernel and workload, sm80; the last is the newest."""
    return [
        written(
            "20260101T101112",
            Trial(CONFIG, "ok", predicted_us=500.0),
            Trial({**CONFIG, "BLOCK_M": 256}, "compile_failed", LONG),
            Trial({**CONFIG, "BLOCK_N": 256}, "compile_failed", LONG),
            Trial({**CONFIG, "maxnreg": 96}, "timeout", "compiling took over 60 s"),
            kernel=OURS,
        ),
        written(
            "20260102T000000",
            Trial({"A": 1}, "wrong", "logsumexp is off by 0.5\n(at most 1e-3)"),
            kernel="gone_by_now",
            workload=str(Workload.parse("q1024_h4_d64_full")),
        ),
        written(
            "20260103T000000",
            Trial(CONFIG, "crashed"),
            kernel=OURS,
            arch="sm80",
            device="NVIDIA A100 SXM4 40GB",
        ),
    ]


@pytest.mark.parametrize("columns", ["80", "120"])
def test_failures(
    run: Run, journals: list[Path], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = run("show", "--failures").stdout
    lines = out.splitlines()
    assert lines[1].split() == ["2", "compile_failed", OURS]
    words = " ".join(out.split())
    for said in (
        "NVIDIA H200 (sm90), 2026-01-01 10:11:12 UTC",
        "logsumexp is off by 0.5 (at most 1e-3)",
        "crashed attention_fwd_triton BLOCK_M=128",
        "no reason was given",
        "...",
        "timeout",
        "tunefa explain --arch sm80 -w fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal --kernel",
    ):
        assert said in words
    places = [out.index(str(path)) for path in reversed(journals)]
    assert places == sorted(places)
    assert LONG not in words
    own = [line for line in lines if not line.startswith(("/", "  tunefa"))]
    assert max(map(len, own)) <= int(columns)


def test_only_what_can_be_explained_is_next(run: Run, journals: list[Path]) -> None:
    assert "Next: see what limits the first config\n" in run("show", "--failures").stdout
    assert "Next: " not in run("show", "--failures", "--kernel", "gone_by_now").stdout


def test_json_has_everything(run: Run, journals: list[Path]) -> None:
    said = json.loads(run("show", "--failures", "--json").stdout)
    assert said["counts"][0] == {
        "kernel": OURS, "outcome": "compile_failed", "count": 2, "reason": LONG
    }  # fmt: skip
    assert sum(row["count"] for row in said["counts"]) == len(said["failures"]) == 5
    assert said["failures"][0]["arch"] == "sm80"
    assert said["failures"][2]["reason"] == LONG
    assert said["failures"][2]["journal"] == str(journals[0])


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ("--arch sm90", 4),
        ("--device h200", 4),
        ("--arch sm80", 1),
        ("-w q4096", 4),
        ("--full", 1),
        ("--kernel gone_by_now", 1),
        (f"--kernel gone_by_now --kernel {OURS}", 5),
        ("--last", 1),
        ("--last --arch sm90 --causal", 3),
        ("--seqlen 1234", 0),
        ("--seqlen 1234 --last", 0),
    ],
)
def test_options_narrow_the_failures(
    run: Run, journals: list[Path], arguments: str, count: int
) -> None:
    said = run("show", "--failures", "--json", *arguments.split())
    assert len(json.loads(said.stdout)["failures"]) == count


def test_a_broken_journal_is_named_and_hides_nothing(run: Run, journals: list[Path]) -> None:
    journals[1].write_text("nonsense\nmore\n")
    result = run("show", "--failures", "--json")
    assert len(json.loads(result.stdout)["failures"]) == 4
    assert result.stderr.startswith(f"Warning: journal left out: {journals[1]}:1: this line")
    assert result.stderr.count("\n") == 1


def test_no_failures(run: Run, home: Path) -> None:
    assert run("show", "--failures").stdout == "There are no failures in the journals.\n"
    said = json.loads(run("show", "--failures", "--json").stdout)
    assert said == {"counts": [], "failures": []}


def test_mistakes(run: Run, journals: list[Path]) -> None:
    error = run("show", "--failures", "--kernel", "gone_by_non", code=1).stderr
    assert "unknown kernel 'gone_by_non': did you mean gone_by_now?" in error
    assert "unknown kernel 'gone_by_now'" in run("show", "--kernel", "gone_by_now", code=1).stderr
    assert "--all is for records" in run("show", "--failures", "--all", code=2).stderr
