"""tunefa/search/candidates.py: what a strategy is told before the first trial."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace

import pytest

from tunefa.compile import languages
from tunefa.costmodel.estimate import expected_us
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


def test_a_config_whose_key_cannot_be_made_is_kept_and_what_it_prints_is_no_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its compilation fails too, and says why in its trial."""
    target, kernel = Target.named("sm90"), kernels.load("attention_fwd_triton")
    request = Request(Workload.parse("q4096_d128"), target, False, (kernel,), Budget.parse("20"))

    def trial_key(case: Case, config: Config) -> int:
        print("from the kernel")
        if config["BLOCK_M"] == 32:
            sys.exit("bye")
        if config["BLOCK_M"] == 64:
            raise KeyError("BLOCK_Q")
        return 1

    monkeypatch.setattr(languages, "load", lambda name: SimpleNamespace(trial_key=trial_key))
    left = candidates.feasible_by_kernel(request)[kernel.name].configs
    everything = request.case(kernel).feasible().configs
    kept = [config for config in everything if config["BLOCK_M"] in (32, 64)]
    assert len(left) == len(kept) + 1
    assert capsys.readouterr().out == ""
