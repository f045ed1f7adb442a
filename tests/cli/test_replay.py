"""tunefa search --replay: the question is the file's; what contradicts it is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.fake_objective import KERNEL, WORKLOAD
from tests.support.sample_landscapes import CONFIGS, compressed, raced, trial
from tests.support.tree import TREE
from tunefa.spec.trial import identity
from tunefa.store import landscape
from tunefa.store import results as store
from tunefa.store.results import Store

BEST = CONFIGS[20]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Forty configs, the best of which raced."""
    trials = [trial(c, 30.0 if c == BEST else 40.0 + i) for i, c in enumerate(CONFIGS[:40])]
    return compressed([*trials, raced(trials[20], *[31.0] * 6)], tmp_path / "made.jsonl.xz")


def test_the_report_says_that_nothing_was_measured_or_stored(run: Run, recorded: Path) -> None:
    found = run("search", "--replay", str(recorded), "--budget", "40", "--strategy", "grid")
    assert f"{WORKLOAD} on NVIDIA H200 (sm90)" in found.stdout
    assert "REPLAYED" in found.stdout and "nothing was measured or stored" in found.stdout
    assert "31.0 us" in found.stdout and "made.jsonl.xz" in found.stdout
    assert "\nstored" not in found.stdout
    assert f"tunefa search --device 'NVIDIA H200' -w {WORKLOAD}" in found.stdout
    assert Store([store.user_root()]).records() == []


def test_json(run: Run, recorded: Path) -> None:
    words = ("--replay", str(recorded), "--budget", "40", "--strategy", "grid", "--json")
    said = json.loads(run("search", *words).stdout)
    assert said["objective"] == said["record"]["objective"] == "replayed"
    assert said["record"]["config"] == BEST and said["stored"] is None
    assert said["mode"] == said["record"]["mode"] == "graph", "what a journal means that says none"


def test_the_mode_is_the_recorded_one(run: Run, tmp_path: Path) -> None:
    path = compressed([trial(BEST, 30.0)], tmp_path / "made.jsonl.xz", mode="eager")
    words = ("search", "--replay", str(path), "--budget", "25", "--strategy", "grid")
    said = json.loads(run(*words, "--json").stdout)
    assert said["mode"] == said["record"]["mode"] == "eager"
    out = run(*words).stdout
    assert "REPLAYED" in out and "Record, replayed, eager" in out and "MEASURED" not in out


def test_the_same_question_in_words_is_fine(run: Run, recorded: Path) -> None:
    words = ("--seqlen", "1024", "--head-dim", "64", "--arch", "sm90", "--kernel", KERNEL.name)
    run("search", "--replay", str(recorded), "--budget", "40", "--strategy", "grid", *words)


@pytest.mark.parametrize(
    "words",
    [
        ("--seqlen", "4096"),
        ("--full",),
        ("-w", "q4096"),
        ("--arch", "h100"),
        ("--arch", "sm90", "--device", "h100"),
    ],
)
def test_another_question_is_an_error_that_names_both(
    words: tuple[str, ...], run: Run, recorded: Path
) -> None:
    said = run("search", "--replay", str(recorded), *words, code=1).stderr
    assert str(WORKLOAD) in said and "NVIDIA H200" in said and " ".join(words) in said


def test_another_kernel_is_an_error_that_names_both(run: Run, recorded: Path) -> None:
    said = run("search", "--replay", str(recorded), "--kernel", "another", code=1).stderr
    assert KERNEL.name in said and "--kernel another" in said


def test_a_journal_of_a_kernel_that_is_not_here(run: Run, tmp_path: Path) -> None:
    path = compressed([trial(BEST, 500.0)], tmp_path / "l.jsonl.xz", kernel="lost_kernel")
    said = run("search", "--replay", str(path), code=1).stderr
    assert "lost_kernel" in said and KERNEL.name in said and "Traceback" not in said


@pytest.mark.parametrize("option", [("--resume",), ("--out", "best.yaml")])
def test_what_a_replay_cannot_be_combined_with(
    option: tuple[str, ...], run: Run, recorded: Path
) -> None:
    said = run("search", *option, "--replay", str(recorded), code=2).stderr
    assert option[0] in said and "--replay" in said


def test_a_wrong_budget_is_found_before_the_file_is_read(run: Run) -> None:
    said = run("search", "--replay", "gone.jsonl", "--budget", "soon", code=1).stderr
    assert "budget 'soon' is neither" in said


@pytest.mark.parametrize("content", [None, b"", b"no journal\nat all\n", b"\xfd7zXZ\x00torn"])
def test_wrong_files_are_one_sentence(content: Any, run: Run, tmp_path: Path) -> None:
    for name in ("wrong.jsonl", "wrong.jsonl.xz"):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        said = run("search", "--replay", str(path), code=1).stderr
        assert said.startswith(f"Error: {path}") and said.count("\n") == 1


def test_a_search_of_a_whole_landscape_ends_within_2_percent_of_its_best(run: Run) -> None:
    (path,) = (TREE / "benchmarks" / "landscapes").glob("*b32_h16_kv16_q512_k512_d64_*")
    said = json.loads(run("search", "--replay", str(path), "--budget", "100", "--json").stdout)
    excess = landscape.load(path).excess(KERNEL.name)
    assert said["trials"] == 100
    assert excess[identity(said["record"]["config"])] <= 0.02
