"""tunefa/experiments/compare.py: real contests in worker processes, on the CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata

import pytest

from tests.support import crashing_contestants
from tunefa.errors import TunefaError
from tunefa.experiments import compare
from tunefa.experiments.compare import Comparisons
from tunefa.measure.contest import Contest, Settings, Step
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("b1_h2_q64_d32_bf16_causal")
ON_THE_HOST = Settings("eager", rounds=3, device="cpu")


@pytest.fixture(scope="module")
def comparisons() -> Iterator[Comparisons]:
    """One process, which imports PyTorch, for the contests that it outlives."""
    with Comparisons(ON_THE_HOST, makers=crashing_contestants.with_them) as made:
        yield made


def test_a_comparison(comparisons: Comparisons) -> None:
    steps: list[Step] = []
    found = comparisons.row(WORKLOAD, ["sdpa", "cudnn"], steps.append)
    assert json.loads(json.dumps(found)) == found
    contest = Contest.from_data(found)
    assert contest.scores.keys() == {"tunefa", "sdpa"}
    assert contest.left_out == {"cudnn": "it runs on CUDA devices only"}
    assert found["ran"]["kernel"] == "pytorch" and "cpu" in found["ran"]["why"]
    assert found["ceilings"]["matmul_tflops"] > 0 and found["ceilings"]["dtype"] == "bf16"
    checked = [step.contestant for step in steps if step.stage == "check"]
    assert checked == ["tunefa", "sdpa", "cudnn"]
    assert [step.done for step in steps] == list(range(6))


def test_contestants_that_end_the_process_or_hang_lose_only_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One right after another, so that each has a new process; and others after them."""
    monkeypatch.setattr(compare, "STEP_LIMIT_S", 10.0)
    with Comparisons(ON_THE_HOST, makers=crashing_contestants.with_them) as comparisons:
        names = ["sdpa", "dies", "leaves", "hangs", "math"]
        found = comparisons.row(WORKLOAD, names, lambda step: None)
    assert found["scores"].keys() == {"tunefa", "sdpa", "math"}
    assert found["left_out"] == {
        "dies": "its process died with exit code -11",
        "leaves": "its process died with exit code 7",
        "hangs": "it did not end within 10 s",
    }


def test_a_mistake_of_the_user_is_raised_here(comparisons: Comparisons) -> None:
    with pytest.raises(TunefaError, match="unknown peer 'nobody'"):
        comparisons.row(WORKLOAD, ["nobody"], lambda step: None)


def test_which_peers_are_present() -> None:
    there, absent = compare.present(["sdpa", "flex"])
    assert there == ["sdpa", "flex"] and not absent
    with pytest.raises(TunefaError, match="unknown peer 'fa5'"):
        compare.present(["fa5"])


def test_versions_are_those_of_installed_packages() -> None:
    found = compare.versions(["sdpa", "fa4", "flashinfer"])
    assert all(metadata.version(package) == found[package] for package in found)
    assert "torch" not in found
