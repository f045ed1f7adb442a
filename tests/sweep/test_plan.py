"""tunefa/sweep/plan.py: what a sweep is asked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.sweeping import plan
from tunefa.errors import TunefaError
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.sweep.plan import Item, Plan


def test_a_plan_is_plain_data() -> None:
    made = replace(plan(), mode="graph", seed=3, device="NVIDIA H200", kernels=("a", "b"))
    assert Plan.from_data(json.loads(json.dumps(made.to_data()))) == made


def test_the_digest_says_what_is_asked_in_any_order() -> None:
    made = plan(targets=("sm80", "sm90"))
    other = plan(targets=("sm90", "sm80"), weights=dict(reversed(list(made.weights.items()))))
    assert made.digest == other.digest and len(made.digest) == 8
    asked = [plan(), plan(seed=1), plan(targets=("sm80",)), plan(kernels=()), plan(device="x")]
    assert len({each.digest for each in asked}) == 5


@pytest.mark.parametrize(
    "change",
    [{"mode": "slow"}, {"weights": {"nonsense": 1.0}}, {"weights": None}, {"seed": "x"}],
)
def test_what_is_no_plan_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError, TunefaError)):
        Plan.from_data({**plan().to_data(), **change})


def test_an_item_is_named_by_chip_and_workload() -> None:
    item = Item(Workload.parse("q512"), Target.named("h200"), 1.0)
    assert item.key.startswith("sm90/NVIDIA H200/fwd_b1_") and item.key.count("/") == 2
    assert plan().measured is False and plan(targets=()).measured is True
