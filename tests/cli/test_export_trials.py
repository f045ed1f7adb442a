"""tunefa export in formats of trials: one journal, one kernel, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.fake_objective import KERNEL
from tests.support.sample_landscapes import CONFIGS, trial
from tests.support.sample_portfolios import WORKLOADS, journal
from tunefa.store.journal import Journal


@pytest.fixture
def path(home: Path) -> str:
    """A journal of three configs, of which one failed."""
    return str(journal(WORKLOADS[0], {0: 100.0, 1: None, 2: 200.0}))


@pytest.fixture
def of_two_kernels(home: Path) -> str:
    """A journal with a trial of each of two kernels."""
    made = {"date": "2026-01-31T12:00:00+00:00", "source_hash": "0123abcd"}
    head = {
        "workload": WORKLOADS[0], "arch": "sm90", "device": "NVIDIA H200", "mode": "eager",
        "provenance": {KERNEL.name: made, "another": made},
    }  # fmt: skip
    with Journal("sm90", head) as written:
        written.append(KERNEL.name, trial(CONFIGS[0], 100.0))
        written.append("another", trial(CONFIGS[1], 100.0))
    return str(written.path)


@pytest.mark.parametrize("name", ["kernel_tuner", "t4"])
def test_the_trials_of_a_journal_become_a_space(run: Run, path: str, name: str) -> None:
    file = f"space.{name}.json"
    assert f"Wrote 3 trials as {name} to {file}." in run("export", file, "--journal", path).stdout
    said = json.loads(Path(file).read_text())
    assert len(said.get("results") or said["cache"]) == 3
    again = json.loads(run("export", file, "--journal", path, "--json").stdout)
    assert again == {"path": file, "format": name, "trials": 3}
    out = run("export", "-", "--format", name, "--journal", path).stdout
    assert out == Path(file).read_text()


def test_a_kernel_is_named_where_there_are_several(run: Run, of_two_kernels: str) -> None:
    error = run("export", "x.t4.json", "--journal", of_two_kernels, code=1).stderr
    assert f"holds trials of {KERNEL.name}, another" in error and "with --kernel" in error
    words = ("--journal", of_two_kernels, "--kernel")
    assert "Wrote 1 trial as t4" in run("export", "x.t4.json", *words, "another").stdout
    error = run("export", "x.t4.json", *words, "anothr", code=1).stderr
    assert "did you mean another?" in error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("", "holds the trials of one journal or recorded landscape: name one with --journal"),
        ("--journal a --journal b", "name one with --journal"),
        ("--journal a --kernel b --kernel c", "holds one kernel: name one --kernel"),
        ("--journal a --portfolio 2%", "--portfolio is for records, and t4 holds trials"),
        ("--journal a --from b.yaml", "--from is for records, and t4 holds trials"),
    ],
)
def test_options_that_do_not_go_together(run: Run, arguments: str, error: str) -> None:
    said = run("export", "x.t4.json", *arguments.split(), code=2).stderr
    assert error in " ".join(said.split())


def test_mistakes(run: Run, home: Path) -> None:
    error = run("export", "x.t4.json", "--journal", "missing.jsonl", code=1).stderr
    assert "missing.jsonl cannot be read" in error
    failed = str(journal(WORKLOADS[0], {0: None}))
    error = run("export", "x.t4.json", "--journal", failed, code=1).stderr
    assert "has a time: every trial failed" in " ".join(error.split())
    assert not Path("x.t4.json").exists()


def test_a_search_writes_no_format_of_trials(run: Run, home: Path) -> None:
    error = run("search", "--arch", "sm90", "--seqlen", "1k", "--out", "x.t4.json", code=1).stderr
    assert "'t4' holds the trials of a journal, not records" in " ".join(error.split())
