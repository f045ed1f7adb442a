"""tunefa/costmodel/before_compiling.py: how fast configs may turn out, by recorded resources."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.tree import TREE
from tunefa.compile import languages
from tunefa.costmodel.before_compiling import expected_and_least_us, order_parameters
from tunefa.costmodel.estimate import estimate, estimates
from tunefa.costmodel.ranking import MODEL_ERROR, rank_us
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload
from tunefa.store import landscape

LANDSCAPES = TREE / "benchmarks" / "landscapes"
NO_GAIN = 0.995
"""A search takes a config that is faster by less than this factor for no gain."""


@pytest.mark.parametrize("head_dim", ["d64_bf16_causal", "d256_bf16_full"])
def test_hardly_a_compiled_config_takes_less(head_dim: str) -> None:
    (path,) = LANDSCAPES.glob(f"nvidia-h200--fwd_b4_*_q4096_*_{head_dim}.jsonl.xz")
    recorded = landscape.load(path)
    (name,) = recorded.kernels
    case = Case(kernels.load(name), recorded.workload, recorded.target)
    trials = [trial for trial in recorded.trials(name) if trial.resources is not None]
    some = [replace(trial, samples_us=()) for trial in random.Random(0).sample(trials, 300)]
    expected = estimates(case, [trial.config for trial in some])
    both = expected_and_least_us(case, [trial.config for trial in some], expected)
    fastest_us = min(each.time_us for each in expected)
    below = {"least": 0, "expected": 0}
    for trial, own, (ranked, low) in zip(some, expected, both, strict=True):
        us = estimate(case, trial.config, trial.resources).time_us
        assert low <= ranked >= own.time_us and us > own.time_us / 2
        if own.time_us < 2 * fastest_us:
            found_us = rank_us(replace(trial, predicted_us=us)) / NO_GAIN
            below["least"] += found_us < low
            below["expected"] += found_us < ranked
    slower = {round(pair[0] / own.time_us, 6) for own, pair in zip(expected, both, strict=True)}
    assert slower == {1.0, 1.0 + MODEL_ERROR}, "some are expected to spill"
    assert below["least"] <= 0.02 * len(some)
    assert below["expected"] > 2 * below["least"], "otherwise the times before would do"


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("attention_fwd_triton", ("L2_SECTION_HEADS",)),
        ("attention_fwd_cuda_sm90", ("L2_SECTION_MB",)),
        ("attention_fwd_gluon_sm90", ("L2_SECTION_MB",)),
        ("attention_fwd_cuda_sm80", ()),
    ],
)
def test_parameters_of_the_order_of_tiles_change_no_binary(
    name: str, order: tuple[str, ...]
) -> None:
    """The input of the compiler says so."""
    case = Case(kernels.load(name), Workload.parse("q1024_d64"), Target.named("sm90"))
    space, config = case.kernel.space, case.default()
    assert order_parameters(space) == order
    key = languages.load(case.kernel.language).binary_key
    unseen = [
        each.name
        for each in space.parameters
        if len({key(case, {**config, each.name: value}, True) for value in each.values}) == 1
    ]
    assert tuple(unseen) == order


def test_a_kernel_that_sets_its_registers_leaves_nothing_to_hope_for() -> None:
    case = Case(
        kernels.load("attention_fwd_gluon_sm90"), Workload.parse("q1024_d128"), Target.named("sm90")
    )
    configs = random.Random(0).sample(case.feasible().configs, 40)
    expected = estimates(case, configs)
    both = expected_and_least_us(case, configs, expected)
    assert both == [(each.time_us, each.time_us) for each in expected]
    assert expected_and_least_us(case, [], []) == []
