"""tunefa/measure/contestant.py: what is timed, on the CPU. Graphs are tested in tests/gpu."""

from __future__ import annotations

import pytest
import torch

from tunefa.measure import check, peers
from tunefa.measure.contestant import Contestant, checked
from tunefa.measure.timing import HostStopwatch
from tunefa.measure.verdict import Truth
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("b2_h4_kv2_q96_d32_bf16_causal")
TENSORS = check.tensors(WORKLOAD, "cpu", seed=0)[:3]
TRUTH = Truth.of(WORKLOAD, TENSORS)


def test_a_right_call_is_timed_as_it_is() -> None:
    call = peers.load("sdpa").make(WORKLOAD, TENSORS)
    found = checked(call, TRUTH, HostStopwatch())
    assert isinstance(found, Contestant)
    assert found.timed is call and not found.captured
    found.samples_us += [3.00004, 1.0, 2.0]
    score = found.score()
    assert score.samples_us == (3.0, 1.0, 2.0)
    assert (score.error, score.worst_row) == (found.verdict.error, found.verdict.worst_row)


def test_a_wrong_call_is_not_timed() -> None:
    calls = []

    def call() -> torch.Tensor:
        calls.append(1)
        return torch.zeros(TRUTH.shape)

    assert checked(call, TRUTH, HostStopwatch()) == "its relative error is 1.0e+00 (limit 2e-02)"
    assert len(calls) == 1


def test_what_a_call_raises_is_raised() -> None:
    def call() -> None:
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        checked(call, TRUTH, HostStopwatch())
