"""tunefa/search/compiled_before.py: which configs need no compiler any more."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.sample_problem import BEST, FEASIBLE, good, problem
from tunefa.compile import languages
from tunefa.costmodel.before_compiling import order_parameters
from tunefa.search.compiled_before import Binaries, CompiledBefore, compiler_sees
from tunefa.search.config_table import ConfigTable
from tunefa.search.strategies import prior
from tunefa.search.study import Study
from tunefa.search.surrogate import Belief
from tunefa.spec.kernel import load
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Resources, Trial
from tunefa.spec.workload import Workload

H200 = Target.named("h200")


def case(kernel: str, workload: str) -> Case:
    return Case(load(kernel), Workload.parse(workload), H200)


@pytest.mark.parametrize(
    ("kernel", "workload", "other"),
    [
        ("attention_fwd_cuda_sm90", "q1024_h8_kv2_d128", "b8_q4096_h8_kv2_d128"),
        ("attention_decode_cuda_sm90", "decode_k1024_h8_kv2_d128", "decode_b8_k4096_h8_kv2_d128"),
    ],
)
def test_what_is_taken_to_be_compiled_mostly_is(kernel: str, workload: str, other: str) -> None:
    """On a workload of another length, and for what only orders tiles."""
    first, second = case(kernel, workload), case(kernel, other)
    key = languages.load(first.kernel.language).binary_key
    configs = [c for c in first.feasible().configs[::97] if second.refusal(c) is None]
    parameters, made = first.kernel.space.parameters, CompiledBefore()
    own, there = (made.of(c, compiler_sees(c, c.feasible().configs)) for c in (first, second))
    binaries = set()
    for positions, config in zip(ConfigTable.of(parameters, configs[::2]).positions, configs[::2],
                                 strict=True):  # fmt: skip
        own.add(positions)
        binaries.add(key(first, config, True))
    some = second.feasible().configs[::31]
    said = there.are_there(ConfigTable.of(parameters, some).positions)
    is_there = np.array([key(second, config, True) in binaries for config in some])
    assert said.any() and (said & is_there).sum() >= 0.9 * said.sum()
    assert (said & is_there).sum() >= 0.9 * is_there.sum()


def test_what_only_orders_tiles_needs_no_other_binary() -> None:
    own = case("attention_fwd_cuda_sm90", "q1024_h8_kv2_d128")
    (name, *_) = order_parameters(own.kernel.space)
    values = next(p.values for p in own.kernel.space.parameters if p.name == name)
    alike = [{**own.default(), name: value} for value in values]
    positions = ConfigTable.of(own.kernel.space.parameters, alike).positions
    binaries = CompiledBefore().of(own)
    assert not binaries.are_there(positions).any()
    binaries.add(positions[0])
    assert len(positions) > 1 and binaries.are_there(positions).all()


@pytest.mark.parametrize(
    ("kernel", "unseen"),
    [
        ("attention_decode_triton", {"CTAS_PER_SM", "MIN_SPLIT_KEYS", "MAX_SPLITS"}),
        ("attention_decode_cuda_sm90", {"SPLIT_COST"}),
    ],
)
def test_what_the_host_side_alone_reads_is_unseen(kernel: str, unseen: set[str]) -> None:
    own = case(kernel, "decode_k1024_h8_kv2_d128")
    sees = compiler_sees(own, own.feasible().configs)
    names = [parameter.name for parameter in own.kernel.space.parameters]
    assert {name for name, is_seen in zip(names, sees, strict=True) if not is_seen} == unseen


def test_kernels_head_dims_and_masks_have_binaries_of_their_own() -> None:
    made, own = CompiledBefore(), case("attention_fwd_cuda_sm90", "q1024_h8_kv2_d128")
    positions = ConfigTable.of(own.kernel.space.parameters, [own.default()]).positions
    made.of(own).add(positions[0])
    for workload, known in (("q64_h8_kv2_d128", True), ("q1024_h8_kv2_d64", False),
                            ("q1024_h8_kv2_d128_full", False)):  # fmt: skip
        other = case("attention_fwd_cuda_sm90", workload)
        assert made.of(other).are_there(positions).all() == known


def binaries(*configs: Config) -> Binaries:
    found = Binaries({}, np.ones(6, bool))
    for positions in ConfigTable.of(problem().parameters, configs).positions:
        found.add(positions)
    return found


def told(found: Binaries | None) -> tuple[prior.Prior, Study]:
    sampler = prior.Prior(replace(problem(FEASIBLE), compiled=found))
    study = Study(sampler)
    for config in FEASIBLE[::60]:
        study.tell(good(config))
    return sampler, study


def test_a_config_with_a_binary_needs_to_promise_less() -> None:
    """The one of the least worth above a quarter of the most promising one is proposed."""
    alone, _ = told(None)
    gain = alone.belief().expected_improvement()
    order = np.argsort(-np.where(alone.candidates.untried[alone.focus], gain, -1.0))
    for place in order[1:40]:
        sampler, study = told(binaries(FEASIBLE[alone.focus[place]]))
        sampler._opening = iter(())
        chosen = FEASIBLE[alone.focus[place]] == study.ask()
        assert chosen == (gain[place] > gain[order[0]] / prior.COMPILING)


def test_what_was_told_with_resources_is_compiled() -> None:
    found = binaries()
    _, study = told(found)
    positions = ConfigTable.of(problem().parameters, [BEST]).positions
    assert not found.are_there(positions)[0]
    study.tell(Trial(BEST, "wrong", resources=Resources()))
    assert found.are_there(positions)[0]


def test_only_those_with_a_binary_are_proposed_if_one_is_asked_for() -> None:
    there = [FEASIBLE[5], BEST, FEASIBLE[70]]
    _, study = told(binaries(*there))
    proposed = [study.ask(compiled=True) for _ in range(4)]
    assert proposed[0] == BEST and proposed[3] is None
    assert all(each in there for each in proposed if each is not None)
    assert told(None)[1].ask(compiled=True) is None
    fresh = Study(prior.Prior(replace(problem(FEASIBLE), compiled=binaries(BEST))))
    assert fresh.ask(compiled=True) is None, "nothing is known yet"


def test_a_config_that_will_probably_fail_is_not_preferred_for_a_lack_of_a_binary() -> None:
    """A negative worth that is divided by COMPILING would be a greater one."""
    sampler, _ = told(binaries(FEASIBLE[2]))
    sampler.focus = np.array([1, 2, 3])
    works = np.array([0.1, 0.1, 1.0])
    belief = Belief(np.zeros(3), np.ones(3), works, best=0.0)
    gain = belief.expected_improvement()
    assert gain[0] == gain[1] < 0.0 < gain[2]
    assert sampler.worth(belief) == pytest.approx([gain[0], gain[1], gain[2] / prior.COMPILING])


def promising(gain: float, *configs: Config) -> Study:
    """A study whose surrogate expects so much of each config; these have a binary."""
    sampler, study = told(binaries(*configs))
    sampler.belief()
    expected: Any = SimpleNamespace(expected_improvement=lambda: np.full(len(sampler.focus), gain))
    sampler.belief = lambda also=(): expected  # type: ignore[method-assign]
    return study


@pytest.mark.parametrize(("gain", "worth_a_trial"), [(0.9e-4, False), (1.1e-4, True)])
def test_what_needs_no_compiler_is_tried_if_it_may_gain(gain: float, worth_a_trial: bool) -> None:
    assert (promising(gain, BEST).ask(compiled=True) == BEST) == worth_a_trial


def test_what_needs_no_compiler_is_tried_once() -> None:
    """FEASIBLE[60] was tried, and has the same expected improvement as the others."""
    study = promising(1.0, FEASIBLE[5], FEASIBLE[60], FEASIBLE[70])
    proposed = [study.ask(compiled=True) for _ in range(3)]
    assert proposed == [FEASIBLE[5], FEASIBLE[70], None]
