"""tunefa/problem.py: what a strategy is told before the first trial."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tunefa import arch as archs
from tunefa import kernel as kernels
from tunefa import problem, search
from tunefa.arch import gpu
from tunefa.budget import Budget
from tunefa.space import Feasible
from tunefa.workload import Workload


@pytest.mark.parametrize("name", ["attention_fwd_cuda_sm90", "attention_fwd_triton"])
def test_the_model_is_asked_once_for_what_it_sees_no_difference_between(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chip, kernel = archs.load("sm90"), kernels.load(name)
    workload = Workload.parse("q4096_d128")
    request = search.Request(
        *(workload, chip, gpu(chip).devices[0], False, (kernel,), Budget.parse("20"))
    )
    asked: list[Any] = []
    expected_us = problem._expected_us

    def counted(*arguments: Any) -> float:
        asked.append(arguments)
        return expected_us(*arguments)

    found = kernel.space.feasible(workload, chip).configs
    some = Feasible(tuple(random.Random(0).sample(found, 400)), {})
    monkeypatch.setattr(problem, "_expected_us", counted)
    made = problem.of(request, kernel, some, [], None)
    assert made.expected_us == [expected_us(request, kernel, each) for each in some.configs]
    assert len(asked) == len({tuple(c[n] for n in kernel.space.modelled) for c in some.configs})
    if name == "attention_fwd_cuda_sm90":
        assert {"PING_PONG", "SLACK", "CLUSTER"}.isdisjoint(kernel.space.modelled)
        assert len(asked) < len(some.configs)
