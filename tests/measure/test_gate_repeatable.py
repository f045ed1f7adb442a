"""`Gate` of tunefa/measure/gate.py launches twice: what differs between the two is a race."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunefa.measure.comparison import Comparison
from tunefa.measure.gate import Gate, Probe
from tunefa.spec.workload import Workload

SHAPE = Workload.parse("h2_q64_k96_d64_bf16_causal")
NAN = float("nan")


def judged(change: Callable[[int, Any, Any], None]) -> Comparison:
    """The verdict of a right kernel whose outputs `change` changes; it is told which launch."""
    probe = Probe.of(SHAPE, "normal", "cpu")
    launches = iter(range(1, 9))

    def launch() -> None:
        out, lse = probe.tensors[3:5]
        out.copy_(probe.expected.out)
        lse.copy_(probe.expected.lse)
        change(next(launches), out, lse)

    return Gate("cpu").compare(launch, probe)


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
    probe = Probe.of(SHAPE, "normal", "cpu")

    def launch() -> None:
        seen.append(all(bool(each.isnan().all()) for each in probe.tensors[3:5]))
        for each in probe.tensors[3:5]:
            each.fill_(0.0)

    Gate("cpu").compare(launch, probe)
    assert seen == [True, True]
