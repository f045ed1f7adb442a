"""`Gate` of tunefa/measure/check.py launches twice: what differs between the two is a race."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tunefa.measure import check, reference
from tunefa.spec.workload import Workload

SHAPE = Workload.parse("h2_q64_k96_d64_bf16_causal")
NAN = float("nan")


def judged(change: Callable[[int, Any, Any], None]) -> check.Comparison:
    """The verdict of a right kernel whose outputs `change` changes; it is told which launch."""
    made = check.tensors(SHAPE, "cpu", seed=0)
    inputs = check.inputs(SHAPE, made, SHAPE.head_dim**-0.5)
    right, right_lse = reference.attention(inputs, torch.float32)
    launches = iter(range(1, 9))

    def launch() -> None:
        made[3].copy_(right)
        made[4].copy_(right_lse)
        change(next(launches), made[3], made[4])

    return check.Gate("cpu").compare(launch, SHAPE, made)


def test_the_same_bits_twice_are_repeatable() -> None:
    verdict = judged(lambda launch, out, lse: None)
    assert verdict.repeatable and verdict.passed


@pytest.mark.parametrize("launch", [1, 2])
@pytest.mark.parametrize("output", ["out", "lse"])
@pytest.mark.parametrize("value", [NAN, 0.0])
def test_an_element_that_differs_in_one_launch_is_a_race(
    launch: int, output: str, value: float
) -> None:
    """NaN is what stays where nothing is written."""

    def change(number: int, out: Any, lse: Any) -> None:
        if number == launch:
            {"out": out, "lse": lse}[output][0, -1, -1] = value

    verdict = judged(change)
    assert not verdict.repeatable and "a race" in verdict.reason


def test_what_is_never_written_is_wrong_and_no_race() -> None:
    def change(number: int, out: Any, lse: Any) -> None:
        out[..., -1] = NAN

    verdict = judged(change)
    assert verdict.repeatable and not verdict.passed


def test_each_launch_begins_with_outputs_of_nan() -> None:
    seen: list[bool] = []
    made = check.tensors(SHAPE, "cpu", seed=0)

    def launch() -> None:
        seen.append(bool(made[3].isnan().all() and made[4].isnan().all()))
        made[3].fill_(0.0)
        made[4].fill_(0.0)

    check.Gate("cpu").compare(launch, SHAPE, made)
    assert seen == [True, True]
