"""Running an experiment: points that fail, and where the figures come from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefa.errors import TunefaError
from tunefa.experiments import experiment as experiments
from tunefa.experiments import run as runs
from tunefa.experiments.document import Row
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

H200 = Target.named("h200")
POINTS = [Workload.parse("q512_d64"), Workload.parse("q1024_d64")]


def failing(workload: Workload, target: Target) -> list[Row]:
    """Models all points but those of 512 rows."""
    if workload.seqlen_q == 512:
        raise TunefaError("too short")
    return [{"workload": str(workload), "tunefa_us": 1.0}]


def test_a_point_that_fails_is_a_row_and_no_end() -> None:
    told: list[tuple[Workload, int, int]] = []
    experiment = replace(experiments.load("scaling"), modelled=failing)
    found = runs.run(experiment, POINTS, H200, None, lambda *each: told.append(each))
    assert [row.get("error") for row in found.rows] == ["too short", None]
    assert told == [(POINTS[0], 0, 2), (POINTS[1], 1, 2)]
    assert (found.arch, found.device, found.is_measured) == ("sm90", "NVIDIA H200", False)


def test_an_error_of_pytorch_is_a_row_and_no_end() -> None:
    import torch

    from tunefa.measure.contest import Settings

    def measured(workload: Workload, settings: Settings) -> list[Row]:
        if workload.seqlen_q == 512:
            raise torch.OutOfMemoryError("CUDA out of memory.\nAnd more.")
        return [{"workload": str(workload), "tunefa_us": 1.0}]

    experiment = replace(experiments.load("scaling"), measured=measured)
    settings = Settings("eager", device="cpu")
    found = runs.run(experiment, POINTS, H200, settings, lambda *_: None)
    said = [row.get("error") for row in found.rows]
    assert said == ["OutOfMemoryError: CUDA out of memory.", None]


def test_if_all_fail_it_is_an_error() -> None:
    experiment = replace(experiments.load("scaling"), modelled=failing)
    with pytest.raises(TunefaError, match="scaling: too short"):
        runs.run(experiment, POINTS[:1], H200, None, lambda *_: None)


def test_a_workload_that_no_memory_holds_is_a_row() -> None:
    huge = Workload.parse("b100_h128_q1000k_d256")
    found = runs.run(experiments.load("scaling"), [*POINTS, huge], H200, None, lambda *_: None)
    assert "GB" in found.rows[-1]["error"] or "GiB" in found.rows[-1]["error"]


def test_versions_are_those_of_this_machine() -> None:
    import torch

    assert runs.made_with()["torch"] == torch.__version__.partition("+")[0] or torch.__version__
    assert {"tunefa", "torch", "triton", "driver", "cudnn"} <= set(runs.made_with())
