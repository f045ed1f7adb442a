"""benchmarks/e4m3.py: its inputs, its errors, and the table of a file."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks import e4m3
from tunefa.spec.workload import Workload

SMALL = Workload.parse("b1_h2_q200_d32_e4m3_causal")


def test_workloads_are_in_e4m3() -> None:
    found = [Workload.parse(text) for text in e4m3.WORKLOADS]
    assert len(set(found)) == 8 and all(each.dtype == "e4m3" for each in found)


@pytest.mark.parametrize("positive", [False, True])
def test_tunefa_s_error_is_that_of_rounding(positive: bool) -> None:
    for accumulate in ({}, {"accumulate": "fast"}):
        assert e4m3.error(SMALL, e4m3.by_tunefa(SMALL, **accumulate), positive) < 5e-2


def test_a_fourth_that_is_missing_is_seen() -> None:
    exact = e4m3.by_tunefa(SMALL)

    def less(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return 0.75 * exact(q, k, v)

    assert e4m3.error(SMALL, less, True) == pytest.approx(0.25, abs=0.01)


def test_values_are_positive_where_they_are_to_be() -> None:
    normal, positive = (e4m3.made(SMALL, 0, each)[2].float() for each in (False, True))
    assert normal.min() < 0.0 and positive.min() >= 0.5 and positive.max() <= 1.5
    assert not torch.equal(e4m3.made(SMALL, 0)[0].float(), e4m3.made(SMALL, 1)[0].float())


def test_the_table_names_leads_over_the_best_peer() -> None:
    tflops = {"tunefa": 500.0, "fast": 660.0, "fa3": 600.0, "cudnn": 550.0}
    errors = {name: [0.02, 0.2] for name in ("tunefa", "fast", "fa3")}
    row = e4m3.table([{"workload": str(SMALL), "tflops": tflops, "errors": errors}]).splitlines()[2]
    assert "| 500 | 660 | 600 | 550 | 0.833 | 1.100 | 2.0e-02, 2.0e-02, 2.0e-02 |" in row
