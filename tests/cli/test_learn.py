"""tunefa learn: what is measured corrects predictions, if that is better on other workloads."""

from __future__ import annotations

import json
import lzma
import math
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.sample_journals import written
from tunefa.cli import learn
from tunefa.costmodel import learned, learning
from tunefa.costmodel.estimate import estimate
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources, Trial
from tunefa.spec.workload import Workload
from tunefa.store import journal

KERNEL = kernels.load("attention_fwd_triton")
CHIP = Target.named("rtx-4090")
"""A chip of an arch of which nothing is shipped."""
SEQLENS = (1024, 2048, 4096)


def searched(seqlen: int, slow: float = 2.0, others: float = 1.1, **header: Any) -> Path:
    """The journal of a search: with two stages a config takes `slow` times as long as predicted.

    One config failed.
    """
    case = Case(KERNEL, Workload.parse(f"q{seqlen}"), CHIP)
    configs = case.feasible().configs
    trials = [Trial(configs[1], "compile_failed", "no registers")]
    for config in configs[::60]:
        resources = Resources(smem_bytes=32768, registers=128, spill_bytes=0, stack_bytes=0)
        expected_us = estimate(case, config, resources).time_us
        factor = slow if config["num_stages"] == 2 else others
        if math.isfinite(expected_us):
            samples = (expected_us * factor,)
            trials.append(Trial(config, "ok", resources=resources, samples_us=samples))
    said = {
        "workload": str(case.workload),
        "arch": CHIP.arch.name,
        "device": CHIP.device.name,
        "mode": "graph",
        "provenance": {KERNEL.name: {"date": "2026-01-31", "source_hash": KERNEL.source_hash}},
    }
    stamp = f"20260131T12{seqlen // 100:04}"
    return written(stamp, *trials, kernel=KERNEL.name, **{**said, **header})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of few trees."""
    monkeypatch.setattr(learning, "MEMBERS", 1)
    monkeypatch.setattr(learning, "ITERATIONS", 40)


@pytest.fixture
def journals(home: Path) -> list[Path]:
    return [searched(seqlen) for seqlen in SEQLENS]


def test_what_was_measured_is_learned_and_used(run: Run, journals: list[Path], home: Path) -> None:
    assert learned.load(KERNEL.name, CHIP.arch.name) is None
    found = json.loads(run("learn", "--json").stdout)
    (lesson,) = found["lessons"]
    assert (lesson["kernel"], lesson["arch"]) == (KERNEL.name, CHIP.arch.name)
    assert lesson["devices"] == [CHIP.device.name] and lesson["workloads"] == 3
    assert lesson["failures"] == 3 and lesson["trials"] > 30
    assert lesson["error_after"] < lesson["error_before"] / 2, "the error is that of two stages"
    model = learned.load(KERNEL.name, CHIP.arch.name)
    assert model is not None and model.id == lesson["model"]
    assert Path(lesson["file"]).is_relative_to(home)
    run("learn", "--forget")
    assert learned.load(KERNEL.name, CHIP.arch.name) is None


def test_the_table_says_what_was_learned_where_from(run: Run, journals: list[Path]) -> None:
    out = " ".join(run("learn", "--dry-run", *map(str, journals)).stdout.split())
    assert "workloads trials error before after" in out
    assert "on workloads that were held out" in out and "3 configs failed and had no time." in out
    assert f"{KERNEL.name}, {CHIP.arch.name}: would be kept" in out
    assert not learned.user_folder().exists()


def test_a_model_that_is_worse_is_not_kept(run: Run, home: Path) -> None:
    """The times of each workload are off by another factor, so that nothing can be learned."""
    for seqlen, by in zip((*SEQLENS, 8192), (0.8, 1.25, 0.8, 1.25), strict=True):
        searched(seqlen, by, by)
    (lesson,) = json.loads(run("learn", "--json").stdout)["lessons"]
    assert lesson["error_after"] > lesson["error_before"]
    assert lesson["file"] is None and not lesson["better"]
    assert "is better" in lesson["why_not"] and not learned.user_folder().exists()


def test_the_model_goes_where_it_is_asked_to(
    run: Run, journals: list[Path], tmp_path: Path
) -> None:
    for out in (tmp_path / "own.npz", tmp_path):
        (lesson,) = json.loads(run("learn", "--out", str(out), "--json").stdout)["lessons"]
        assert Path(lesson["file"]).is_file() and Path(lesson["file"]).is_relative_to(out)
    assert not learned.user_folder().exists(), "it is not used"


def test_compressed_journals_in_a_folder_are_read(
    run: Run, journals: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    for path in journals:
        packed = folder / f"{path.name}.xz"
        packed.write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()
    (lesson,) = json.loads(run("learn", str(folder), "--dry-run", "--json").stdout)["lessons"]
    assert lesson["workloads"] == 3 and lesson["file"] is None


def test_too_few_workloads(run: Run, home: Path) -> None:
    for seqlen in SEQLENS[:2]:
        searched(seqlen)
    assert run("learn", code=1).stderr == (
        "Error: the trials are of 2 workloads that tunefa has not learned from yet, and to learn "
        "takes at least 3 of one kernel: search more workloads on a GPU\n"
    )


def test_journals_without_a_measured_trial(run: Run, home: Path, tmp_path: Path) -> None:
    said = run("learn", code=1).stderr
    assert said.startswith(f"Error: no measured trial to learn from in {journal.folder()}: ")
    old = {KERNEL.name: {"date": "2026-01-31", "source_hash": "beef"}}
    path = searched(1024, provenance=old)
    said = run("learn", str(path), code=1).stderr
    assert f"the source of {KERNEL.name} has changed since): search on a GPU" in said
    said = run("learn", str(tmp_path / "nowhere"), code=1).stderr
    assert "nowhere does not exist: name a journal, or a folder of journals" in said
    notes = tmp_path / "notes.jsonl"
    notes.write_text("5\n")
    assert "this is not a journal of tunefa" in run("learn", str(notes), code=1).stderr


def test_without_scikit_learn(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "find_spec", lambda name: None)
    said = run("learn", code=1).stderr
    assert said == "Error: learning needs scikit-learn: pip install 'scikit-learn>=1.5'\n"


def test_to_forget_names_nothing(run: Run, home: Path) -> None:
    said = run("learn", "--forget", "journal.jsonl", code=2).stderr
    assert "--forget removes every model that was learned: name nothing" in said
    assert "Nothing was learned here" in run("learn", "--forget").stdout
    assert json.loads(run("learn", "--forget", "--json").stdout) == {"removed": True, "files": []}
