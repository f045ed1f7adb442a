"""tunefa/search/run.py with several kernels: which is first, what each has, which is left early.

The objective is a fake here; in most tests all configs of a kernel take as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.support.clock import Clock
from tests.support.fake_objective import SM90, WORKLOAD, Fake, Seen, request, user_store
from tests.support.own_kernels import OwnKernels
from tunefa.costmodel.estimate import Estimate
from tunefa.measure import measured
from tunefa.measure.bench import KernelRaceResult
from tunefa.measure.objective import Raced
from tunefa.search import candidates, parts, proposer
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.search.parts import Part
from tunefa.search.request import Request, Result
from tunefa.search.stopping import StoppingRule
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Trial

Times = dict[str, float]
Timed = Callable[[Times], tuple[Kernel, ...]]


@pytest.fixture
def timed(fake: type[Fake], own_kernels: OwnKernels) -> Timed:
    """Makes kernels of these names; every config of one takes its time."""

    def kernels(times: Times) -> tuple[Kernel, ...]:
        fake.judge = lambda self, config: times[self.kernel.name]  # type: ignore[assignment, misc]
        return tuple(own_kernels.add_attention(name) for name in times)

    return kernels


def searched(asked: Request, seen: Seen | None = None) -> Result:
    return search.search(asked, user_store(), seen or Seen())


def counts(result: Result) -> dict[str, int]:
    """Trials by kernel, in the order in which they were searched."""
    names = [finished.kernel for finished in result.finished]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def default_us(monkeypatch: pytest.MonkeyPatch, times: Times) -> None:
    """Sets the time expected of each kernel's default; that of everything else is ever less."""
    flattery = iter(range(10**9))

    def expected_us(case: Case, config: Config) -> float:
        if config == candidates.default(case):
            return times[case.kernel.name]
        return 1.0 / (1 + next(flattery))

    monkeypatch.setattr(candidates, "expected_us", expected_us)


def test_the_most_promising_kernel_is_first(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = timed({"order_a": 9.0, "order_b": 9.0, "order_c": 9.0, "order_d": 9.0})
    for expected, order in (
        ((5.0, 5.0, 5.0, 5.0), "abcd"),
        ((5.0, 3.0, 9.0, 3.0), "bdac"),
        ((math.inf, -1.0, 9.0, math.inf), "cabd"),
    ):
        default_us(monkeypatch, dict(zip((k.name for k in kernels), expected, strict=True)))
        result = searched(request(*kernels, budget=Budget(trials=4)))
        assert list(counts(result)) == [f"order_{letter}" for letter in order]
        assert list(result.feasible) == [kernel.name for kernel in kernels]


def test_for_a_kernel_without_a_default_stands_its_best(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    has, has_not = timed({"has_default": 9.0, "has_none": 9.0})
    has_not = replace(has_not, space=replace(has_not.space, defaults=()))
    best = has_not.space.feasible(WORKLOAD, SM90).configs[7]

    def expected_us(case: Case, config: Config) -> float:
        return 5.0 if case.kernel is has or config == best else 8.0

    monkeypatch.setattr(candidates, "expected_us", expected_us)
    cases = [request().case(kernel) for kernel in (has_not, has)]
    feasible = {k.name: k.space.feasible(WORKLOAD, SM90) for k in (has, has_not)}
    assert candidates.by_predicted_time(cases, feasible) == cases
    best = {}
    assert candidates.by_predicted_time(cases, feasible) == cases[::-1]


def test_the_first_has_most_of_a_large_budget(timed: Timed) -> None:
    kernels = timed({"most": 100.0, "less": 114.0, "least": 114.0})
    result = searched(request(*kernels, budget=Budget(trials=120)))
    assert counts(result) == {"most": 60, "less": 34, "least": 26}
    assert result.left_early == {}


@pytest.mark.parametrize(
    ("budget", "each"),
    [("200", {"leads": 114, "lags": 16, "follows": 70}),
     ("600s", {"leads": 63, "lags": 16, "follows": 63})],
)  # fmt: skip
def test_a_kernel_that_is_behind_is_left_early(
    timed: Timed, clock: Clock, budget: str, each: dict[str, int]
) -> None:
    """The next one gets the trials that it leaves; by seconds, others end on their plateaus."""
    kernels = timed({"leads": 100.0, "lags": 133.0, "follows": 110.0})
    result = searched(request(*kernels, budget=Budget.parse(budget)))
    assert counts(result) == each and result.left_early == {"lags": pytest.approx(0.33)}
    assert result.record is not None and result.record.kernel == "leads"


def test_a_kernel_that_is_better_has_its_time_and_wins(timed: Timed) -> None:
    kernels = timed({"expected": 100.0, "better": 70.0, "too_late": 100.0})
    result = searched(request(*kernels, budget=Budget(trials=120)))
    assert counts(result) == {"expected": 60, "better": 34, "too_late": 16}
    assert result.record is not None and result.record.kernel == "better"
    assert result.left_early == {"too_late": pytest.approx(3 / 7)}


def test_nobody_is_behind_a_kernel_that_is_wrong(timed: Timed, fake: type[Fake]) -> None:
    kernels = timed({"fast_but_wrong": 50.0, "slow_but_right": 100.0})
    fake.wrong = frozenset({"fast_but_wrong"})
    result = searched(request(*kernels, budget=Budget(trials=100)))
    assert counts(result) == {"fast_but_wrong": 60, "slow_but_right": 40}
    assert result.record is not None and result.record.kernel == "slow_but_right"


def test_a_kernel_that_cannot_win_is_not_checked(timed: Timed) -> None:
    """The interpreter takes seconds: it checks what may become the record."""
    kernels = timed({"is_best": 100.0, "is_equal": 100.0, "is_worse": 110.0})
    seen = Seen()
    result = searched(request(*kernels, budget=Budget(trials=3)), seen)
    assert {report.kernel for report in seen.reports if report.stage == "check"} == {"is_best"}
    assert result.record is not None and result.record.kernel == "is_best"


def test_failures_are_no_look_at_a_kernel(timed: Timed, fake: type[Fake]) -> None:
    kernels = timed({"is_fine": 100.0, "often_fails": 150.0})
    judge, turn = fake.judge, iter(range(10**6))

    def failing(self: Fake, config: Config) -> Any:
        fails = self.kernel.name == "often_fails" and next(turn) % 2
        return "crashed" if fails else judge(self, config)  # type: ignore[call-arg, arg-type]

    fake.judge = failing  # type: ignore[assignment]
    result = searched(request(*kernels, budget=Budget(trials=100)))
    assert counts(result) == {"is_fine": 60, "often_fails": 31}


@pytest.mark.parametrize("strategy", ["grid", "random", "tpe", "gp"])
def test_a_strategy_that_begins_anywhere_leaves_no_kernel_early(
    timed: Timed, strategy: str
) -> None:
    kernels = timed({f"any_{strategy}": 100.0, f"other_{strategy}": 900.0})
    result = searched(request(*kernels, budget=Budget(trials=60), strategy=strategy))
    assert list(counts(result).values()) == [34, 26] and result.left_early == {}


def test_one_that_begins_with_the_best_does(timed: Timed) -> None:
    kernels = timed({"a_prior": 100.0, "b_prior": 900.0})
    result = searched(request(*kernels, budget=Budget(trials=60), strategy="prior"))
    assert list(counts(result).values()) == [34, 16]


def test_earlier_trials_are_part_of_the_look(timed: Timed, fake: type[Fake]) -> None:
    asked = request(*timed({"before": 100.0, "after": 150.0}), budget=Budget(trials=100))
    first = searched(asked, Seen(79))  # 60 trials, 8 finalists and the check, 10 more
    assert first.interrupted and counts(first) == {"before": 60, "after": 10}
    for _ in range(2):
        more = searched(replace(asked, resume=first.journal))
        assert counts(more) == {"before": 60, "after": 16} and not more.interrupted
        assert more.left_early == {"after": pytest.approx(0.5)}
        assert more.record is not None and more.record.kernel == "before"


class Measuring(Fake):
    """In place of the objective on a device; the leader wins the final."""

    raced: ClassVar[dict[str, list[Config]]] = {}

    def next(self, wait_s: float = math.inf) -> Trial | None:
        trial = super().next(wait_s)
        return trial and replace(trial, samples_us=(trial.predicted_us or 0.0,), error=1e-3)

    def race(self, trials: Any, default: Config | None, until: float = math.inf) -> Raced:
        self.raced[self.kernel.name] = [trial.config for trial in trials]
        return Raced(list(trials), trials[0], {"decision": "raced"})

    def race_kernels(
        self, own: Trial, rivals: list[tuple[str, Trial]], until: float
    ) -> KernelRaceResult:
        return KernelRaceResult(self.kernel.name, {"slower_by": {name: 0.5 for name, _ in rivals}})


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch, remembered: None) -> dict[str, list[Config]]:
    """Searches measure; what is raced of each kernel."""
    monkeypatch.setattr(measured, "gpu_objective", lambda mode: Measuring)
    monkeypatch.setattr(Measuring, "raced", {})
    return Measuring.raced


def test_a_kernel_that_is_behind_races_for_the_final_only(
    own_kernels: OwnKernels, raced: dict[str, list[Config]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its best and its default, both checked on the real shape."""
    kernels = [own_kernels.add_attention(name) for name in ("raced_a", "raced_b", "raced_c")]
    us = {"raced_a": (101.0, 85.0), "raced_b": (114.0, 110.0), "raced_c": (105.0, 90.0)}
    default = kernels[0].default(WORKLOAD, SM90)

    def judge(self: Fake, config: Config) -> float:
        return us[self.kernel.name][config != default]

    monkeypatch.setattr(Measuring, "judge", judge)
    result = searched(request(*kernels, measured=True, budget=Budget(trials=120)))
    assert {name: len(configs) for name, configs in raced.items()} == {
        "raced_a": 9, "raced_b": 2, "raced_c": 9,
    }  # fmt: skip
    assert raced["raced_b"][1] == default != raced["raced_b"][0]
    assert result.record is not None and result.record.kernel == "raced_a"
    certificate = result.record.certificate or {}
    assert certificate["kernels"] == {"slower_by": {"raced_b": 0.5, "raced_c": 0.5}}


def one_behind(
    own_kernels: OwnKernels, monkeypatch: pytest.MonkeyPatch, leader: str, behind: str
) -> list[Kernel]:
    """Two kernels; each config of the second one takes half as long again as those of the first."""
    kernels = [own_kernels.add_attention(name) for name in (leader, behind)]
    monkeypatch.setattr(
        Measuring, "judge", lambda self, config: 100.0 if self.kernel is kernels[0] else 150.0
    )
    return kernels


def test_a_kernel_whose_default_is_far_behind_is_not_searched(
    own_kernels: OwnKernels, raced: dict[str, list[Config]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = one_behind(own_kernels, monkeypatch, "brief_a", "brief_b")
    result = searched(request(*kernels, measured=True, budget=Budget(trials=20)))
    assert counts(result) == {"brief_a": 19, "brief_b": 1}
    assert result.left_early == {"brief_b": pytest.approx(0.5)}
    assert (len(raced["brief_a"]), len(raced["brief_b"])) == (8, 1)


def test_the_model_is_not_asked_about_a_kernel_that_has_lost(
    own_kernels: OwnKernels, raced: dict[str, list[Config]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = one_behind(own_kernels, monkeypatch, "known_a", "known_b")
    asked, problem, rule = list[str](), candidates.search_problem, proposer.stopping_rule

    def noted(request: Request, case: Case, *rest: Any) -> Any:
        asked.append(case.kernel.name)
        return problem(request, case, *rest)

    def without_time_for_a_look(state: Any, part: Part) -> StoppingRule:
        found = rule(state, part)
        return replace(found, fair_trials=0.0) if part.behind else found

    monkeypatch.setattr(candidates, "search_problem", noted)
    monkeypatch.setattr(proposer, "stopping_rule", without_time_for_a_look)
    asking = request(*kernels, measured=True, budget=Budget(trials=20), sweep="s")
    result = searched(asking)
    assert asked == ["known_a"] and list(result.left_early) == ["known_b"]
    assert "known_b" not in result.hoped and len(raced["known_b"]) == 1
    assert counts(result) == {"known_a": 19, "known_b": 1}


def test_the_model_may_expect_that_one_which_is_far_behind_catches_up(
    own_kernels: OwnKernels, raced: dict[str, list[Config]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = one_behind(own_kernels, monkeypatch, "near_a", "near_b")
    default = kernels[0].default(WORKLOAD, SM90)

    def estimates(case: Case, configs: Any) -> list[Estimate]:
        return [Estimate(30.0 if config == default else 20.0, 0.1, 0.1) for config in configs]

    monkeypatch.setattr(parts, "estimates", estimates)
    monkeypatch.setattr(parts, "expected_us", lambda case, config: 30.0)
    result = searched(request(*kernels, measured=True, budget=Budget(trials=60)))
    assert counts(result) == {"near_a": 33, "near_b": 16}
