"""Counting and timing calls."""

from __future__ import annotations

import time

import torch

from tunefa.integrations.tracer import Tracer
from tunefa.spec.workload import Workload

CPU = torch.device("cpu")
WORKLOAD = Workload.parse("q64")


def test_calls_are_counted_and_timed() -> None:
    tracer = Tracer()
    for _ in range(2):
        tracer.call(lambda: WORKLOAD, CPU, lambda: time.sleep(0.01))
    assert tracer.call(lambda: "another", CPU, lambda: 7) == 7
    found = tracer.found()
    assert found.device == "cpu"
    assert found.workloads[WORKLOAD].count == 2
    assert 0.02 <= found.workloads[WORKLOAD].seconds < 2.0


def test_calls_inside_of_a_call_are_a_part_of_it() -> None:
    tracer = Tracer()
    tracer.call(lambda: "outer", CPU, lambda: tracer.call(lambda: "inner", CPU, lambda: None))
    assert set(tracer.found().other) == {"outer"}
    tracer.call(lambda: "inner", CPU, lambda: None)
    assert set(tracer.found().other) == {"outer", "inner"}
