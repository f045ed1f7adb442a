"""tunefa/search/candidates.py: what a strategy is told before the first trial."""

from __future__ import annotations

import random

import pytest

from tunefa.costmodel.expected_time import expected_us
from tunefa.search import candidates
from tunefa.search.budget import Budget
from tunefa.search.request import Request
from tunefa.spec import kernel as kernels
from tunefa.spec.space import Feasible
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload


@pytest.mark.parametrize("name", ["attention_fwd_cuda_sm90", "attention_fwd_triton"])
def test_the_model_is_asked_once_for_what_it_sees_no_difference_between(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, kernel = Target.named("sm90"), kernels.load(name)
    workload = Workload.parse("q4096_d128")
    request = Request(workload, target, False, (kernel,), Budget.parse("20"))
    case = request.case(kernel)
    asked: list[Config] = []

    def counted(case: Case, config: Config) -> float:
        asked.append(config)
        return expected_us(case, config)

    found = case.feasible().configs
    some = Feasible(tuple(random.Random(0).sample(found, 400)), {})
    monkeypatch.setattr(candidates, "expected_us", counted)
    made = candidates.search_problem(request, case, some, [], None)
    assert made.expected_us == [expected_us(case, each) for each in some.configs]
    assert len(asked) == len(
        {tuple(c[n] for n in kernel.space.seen_by_cost_model) for c in some.configs}
    )
    if name == "attention_fwd_cuda_sm90":
        assert {"PING_PONG", "RESCALE_THRESHOLD", "CLUSTER_SIZE"}.isdisjoint(
            kernel.space.seen_by_cost_model
        )
        assert len(asked) < len(some.configs)
