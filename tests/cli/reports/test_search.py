"""tunefa/cli/reports/search.py: the report of a search on a terminal, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.canned_search import CONFIG, SMALL, Searching
from tests.support.fake_objective import Fake
from tests.support.sample_records import measured, predicted
from tunefa.cli import targets
from tunefa.compile.launch.driver import SeenDevice
from tunefa.store import exports
from tunefa.store import results as store


def test_report_has_everything(run: Run, canned: Searching, tmp_path: Path) -> None:
    canned(record=predicted(config=CONFIG))
    result = run(*SMALL, "--out", "best.yaml")
    out = result.stdout
    for words in (
        "PREDICTED by the cost model for a chip that is not here; nothing was measured",
        "9 trials in 12 s",
        "1    300.0      254 to 354 ",
        "5  1,518.8  1,288 to 1,790 ",
        "  96.0  ",
        "2  compile_failed  error: out of registers",
        "1  timeout         compiling took over 60 s",
        "the rules leave 1 of 8 configs",
        "7  a rule",
        "Record, predicted",
        "412.5 us, 533.2 TFLOP/s (predicted, not measured)",
        f"stored     {tmp_path / 'stored.yaml'}",
        "written    best.yaml",
        f"journal    {tmp_path / 'journal.jsonl'}",
        "  tunefa import best.yaml",
    ):
        assert words in out
    assert "2,278.1" not in out  # the sixth
    assert "idle" not in out
    assert "MEASURED" not in out
    assert store.read(Path("best.yaml")) == [predicted(config=CONFIG)]
    assert "search: 3 done, 1 failed, best 300.0 us (25%, about 6 s left)" in result.stderr
    assert "check: 3 done" in result.stderr


DECISION = "the model sees nothing that beats the default measured on X beyond its error of 6%"


@pytest.mark.parametrize("columns", ["40", "80", "160"])
def test_a_recommendation_says_why(
    run: Run, canned: Searching, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    record = predicted(config=CONFIG, certificate={"decision": DECISION, "kept": True})
    canned(record=record)
    store.default_store().add(record)
    assert f"Recommended: {DECISION} " in " ".join(run(*SMALL).stdout.split())
    assert f"recommended: {DECISION} " in " ".join(run("show").stdout.split())
    canned(record=predicted(config=CONFIG))
    assert "Recommended:" not in run(*SMALL).stdout


def test_measured_results_say_so(
    run: Run, canned: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "seen", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 10**11)])
    requests: Any = canned(record=measured())
    out = run("search", "--seqlen", "4096").stdout
    assert "MEASURED on this machine's device" in out
    assert "redicted" not in out.replace("REDICTED", "redicted")
    assert requests[0].measured
    assert requests[0].target.device.name == "NVIDIA H200"
    words = "tunefa export best.yaml --arch sm90 -w fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal"
    assert words in out


@pytest.mark.parametrize("columns", ["80", "120"])
def test_report_fits_the_terminal(
    run: Run, canned: Searching, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    canned(record=predicted(config=CONFIG))
    lines = run(*SMALL).stdout.splitlines()
    paths = ("stored", "journal", "  tunefa")
    assert max(len(line) for line in lines if not line.startswith(paths)) <= int(columns)


TWO = ("--kernel", "attention_fwd_gluon_sm90", "--kernel", "attention_fwd_triton")


def test_two_kernels_are_told_apart(
    run: Run, fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = run(*SMALL, *TWO, "--budget", "4").stdout
    assert out.count("2 trials, the best 100.0 us") == 2
    for kernel in TWO[1::2]:
        assert f"all {kernel} " in out and f"{kernel}: the rules leave" in out


def test_a_kernel_that_was_left_early_is_said(
    run: Run, fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    us = {"attention_fwd_triton": 134.0}
    fake.judge = lambda self, config: us.get(self.kernel.name, 100.0)  # type: ignore[assignment, misc]
    words = (*SMALL, *TWO, "--budget", "60", "--strategy", "prior")
    out = run(*words).stdout
    gluon, triton = (
        "34 trials, the best 100.0 us\n",
        "16 trials, the best 134.0 us; given up early, 34% slower than another kernel\n",
    )
    assert gluon in out and triton in out
    said = json.loads(run(*words, "--json").stdout)
    assert said["left_early"] == {"attention_fwd_triton": pytest.approx(0.34)}


def test_json_is_the_whole_report(run: Run, canned: Searching) -> None:
    canned(record=predicted(config=CONFIG))
    said = json.loads(run(*SMALL, "--json", "--out", "best.json").stdout)
    assert said["objective"] == "predicted"
    assert said["record"] == predicted(config=CONFIG).to_dict()
    assert [row["median_us"] for row in said["top"]] == pytest.approx(
        [300, 450, 675, 1012.5, 1518.75]
    )
    assert said["top"][0]["interval_us"] == pytest.approx([254.5, 353.6], abs=0.1)
    assert said["top"][0]["blocks_per_sm"] == 1
    assert said["failures"] == {"compile_failed": 2, "timeout": 1}
    assert said["refused"] == {"attention_fwd_triton": {"a rule": 7, "idle": 0}}
    assert said["out"] == "best.json" and said["left_early"] == {}
    assert exports.readable("json").load(Path("best.json").read_text(), "best.json")
