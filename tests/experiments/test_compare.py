"""tunefa/experiments/compare.py: real contests in worker processes, on the CPU."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from tests.support import crashing_contestants
from tunefa.errors import TunefaError
from tunefa.experiments import compare
from tunefa.experiments.compare import Comparisons
from tunefa.experiments.document import Row
from tunefa.measure.contest import Contest, Settings, Step
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("b1_h2_q64_d32_bf16_causal")
ON_THE_HOST = Settings("eager", rounds=3, device="cpu")


def row(*names: str, steps: list[Step] | None = None) -> Row:
    told: list[Step] = [] if steps is None else steps
    with Comparisons(ON_THE_HOST, makers=crashing_contestants.with_them) as comparisons:
        return comparisons.row(WORKLOAD, names, told.append)


def test_a_comparison() -> None:
    steps: list[Step] = []
    found = row("sdpa", "cudnn", steps=steps)
    assert json.loads(json.dumps(found)) == found
    contest = Contest.from_data(found)
    assert contest.scores.keys() == {"tunefa", "sdpa"}
    assert contest.left_out == {"cudnn": "it runs on CUDA devices only"}
    assert found["ran"]["kernel"] == "pytorch" and "cpu" in found["ran"]["why"]
    assert found["ceilings"]["matmul_tflops"] > 0 and found["ceilings"]["dtype"] == "bf16"
    checked = [step.contestant for step in steps if step.stage == "check"]
    assert checked == ["tunefa", "sdpa", "cudnn"]
    assert [step.done for step in steps] == list(range(6))


def test_contestants_that_end_the_process_lose_only_their_rows() -> None:
    """One right after another, so that the second one has a new process; and others after them."""
    found = row("sdpa", "dies", "leaves", "math")
    assert found["scores"].keys() == {"tunefa", "sdpa", "math"}
    assert found["left_out"] == {
        "dies": "its process died with exit code -11",
        "leaves": "its process died with exit code 7",
    }


def test_a_contestant_that_hangs_loses_only_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "STEP_LIMIT_S", 10.0)
    found = row("sdpa", "hangs")
    assert found["scores"].keys() == {"tunefa", "sdpa"}
    assert found["left_out"] == {"hangs": "it did not end within 10 s"}


def test_a_mistake_of_the_user_is_raised_here() -> None:
    with pytest.raises(TunefaError, match="unknown peer 'nobody'"):
        row("nobody")


def test_which_peers_are_present() -> None:
    there, absent = compare.present(["sdpa", "flex"])
    assert there == ["sdpa", "flex"] and not absent
    with pytest.raises(TunefaError, match="unknown peer 'fa5'"):
        compare.present(["fa5"])


def test_versions_are_those_of_installed_packages() -> None:
    found = compare.versions(["sdpa", "fa4", "flashinfer"])
    assert all(metadata.version(package) == found[package] for package in found)
    assert "torch" not in found
