"""tunefa/search/candidates.py: what a strategy is told before the first trial."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tunefa.compile import languages
from tunefa.search import candidates
from tunefa.search.budget import Budget
from tunefa.search.request import Request
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload


def test_values_that_a_learned_model_tells_apart_are_searched_without_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, kernel = Target.named("sm90"), kernels.load("attention_fwd_cuda_sm90")
    request = Request(Workload.parse("q512_d256"), target, False, (kernel,), Budget.parse("20"))

    def values() -> dict[str, set[int]]:
        configs = candidates.feasible_by_kernel(request)[kernel.name].configs
        timed = ("RESCALE_THRESHOLD", "CLUSTER_SIZE", "P_IN_SMEM")
        return {name: {config[name] for config in configs} for name in timed}

    monkeypatch.setattr(candidates, "learned_parameters", lambda case: frozenset())
    assert values() == {"RESCALE_THRESHOLD": {8}, "CLUSTER_SIZE": {1}, "P_IN_SMEM": {0}}
    known = frozenset({"CLUSTER_SIZE", "BLOCK_N"})
    monkeypatch.setattr(candidates, "learned_parameters", lambda case: known)
    assert values() == {"RESCALE_THRESHOLD": {8}, "CLUSTER_SIZE": {1, 2}, "P_IN_SMEM": {0}}


def test_only_predictions_are_settled_without_compiling() -> None:
    target, kernel = Target.named("sm90"), kernels.load("attention_fwd_cuda_sm90")
    request = Request(Workload.parse("q512_d256"), target, False, (kernel,), Budget.parse("20"))
    case = request.case(kernel)
    feasible = candidates.feasible_by_kernel(request)[kernel.name]
    made = candidates.search_problem(request, case, feasible, [], None)
    assert len(made.least_us) == len(made.binaries) == len(feasible.configs)
    assert len(set(made.binaries)) == len(feasible.configs) / 4, "four values of L2_SECTION_MB"
    measured = replace(request, measured=True)
    made = candidates.search_problem(measured, case, feasible, [], None)
    assert not made.least_us and not made.binaries


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
