"""tunefa/search/kernel_race.py: which kernel wins, and what its certificate says of the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_objective import KERNEL, request
from tests.support.own_kernels import OwnKernels
from tests.support.predicted_case import ok
from tunefa.measure import measured
from tunefa.measure.bench import KernelRaceResult
from tunefa.measure.measured import LostProcess
from tunefa.search import kernel_race
from tunefa.search.budget import Budget
from tunefa.search.winner import Winner
from tunefa.spec.target import Case

CERTIFICATE = {"decision": "the fastest of 8"}
RACE = {"decision": "the fastest of 2", "slower_by": {}}


class Racing:
    """In place of the objective: `says` is what its race says, `asked` what it was asked."""

    says: Any = None
    asked: Any = None

    def __init__(self, case: Case, *_: Any) -> None:
        self.kernel = case.kernel

    def __enter__(self) -> Racing:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def race_kernels(self, own: Any, rivals: Any, until: float) -> Any:
        type(self).asked = (self.kernel.name, own, rivals, until)
        return self.says


@pytest.fixture
def racing(monkeypatch: pytest.MonkeyPatch) -> type[Racing]:
    class Own(Racing):
        pass

    monkeypatch.setattr(measured, "gpu_objective", lambda mode: Own)
    return Own


@pytest.fixture
def winners(own_kernels: OwnKernels) -> list[Winner]:
    """The first is slower in its own race."""
    kernels = [own_kernels.add_attention("final_slow"), own_kernels.add_attention("final_fast")]
    trials = [ok(64, 9.0), ok(128, 7.0)]
    return [
        Winner(kernel, trial, CERTIFICATE, "eager")
        for kernel, trial in zip(kernels, trials, strict=True)
    ]


def test_the_race_decides_and_not_the_medians(racing: type[Racing], winners: list[Winner]) -> None:
    racing.says = KernelRaceResult("final_slow", RACE)
    budget = Budget(seconds=60)
    won = kernel_race.winner(request(measured=True, budget=budget), winners)
    assert won is not None and won.kernel.name == "final_slow"
    assert won.certificate == {**CERTIFICATE, "kernels": RACE}
    fast, slow = winners[1].trial, winners[0].trial
    assert racing.asked == ("final_fast", fast, [("final_slow", slow)], budget.deadline())


def test_a_race_that_was_lost_leaves_the_medians(
    racing: type[Racing], winners: list[Winner]
) -> None:
    racing.says = LostProcess("timeout", "running took over 120 s")
    won = kernel_race.winner(request(measured=True), winners)
    assert won is not None and won.kernel.name == "final_fast" and won.certificate is not None
    assert "running took over 120 s" in won.certificate["kernels"]["decision"]


def test_what_was_not_measured_does_not_race(racing: type[Racing], winners: list[Winner]) -> None:
    won = kernel_race.winner(request(), winners)
    assert won is winners[1] and racing.asked is None


def test_one_kernel_has_nobody_to_race(racing: type[Racing], winners: list[Winner]) -> None:
    assert kernel_race.winner(request(measured=True), winners[:1]) is winners[0]
    assert kernel_race.winner(request(measured=True), []) is None and racing.asked is None


def test_the_final_has_its_share_of_the_seconds(racing: type[Racing]) -> None:
    def share(seconds: float | None, kernels: int, measured: bool = True) -> float:
        budget = Budget(trials=5) if seconds is None else Budget(seconds=seconds)
        asked = request(KERNEL, measured=measured, budget=budget)
        return kernel_race.share_before(asked, kernels)

    assert share(80.0, 2) == pytest.approx(0.9375)
    assert share(10.0, 2) == pytest.approx(0.8)
    assert share(80.0, 1) == share(None, 2) == share(80.0, 2, measured=False) == 1.0
