"""tunefa/search/loop.py: when a search starts no more, what it waits for, and what it abandons."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, get_args

import pytest

from tests.support.clock import Clock
from tests.support.fake_objective import KERNEL, Fake, request
from tunefa.search import loop
from tunefa.search.budget import FLOOR_S, Budget
from tunefa.search.gpu_turns import Turns
from tunefa.search.loop import Share, StoppingRule
from tunefa.spec.trial import Config, Resources, Trial
from tunefa.store.record import ObjectiveKind


class Numbers:
    """Proposes 0, 1, 2 and so on; remembers what it was told."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self) -> Config | None:
        self.asked += 1
        return {"A": self.asked - 1}

    def tell(self, trial: Trial) -> None:
        pass


def fake(pause_s: float = 0.0, judge: Any = lambda config: 100.0) -> Fake:
    class Own(Fake):
        pass

    Own.pause_s, Own.judge = pause_s, staticmethod(judge)
    return Own(request().case(KERNEL))


def share(budget: Budget, reserve_s: float = 0.0, fraction: float = 1.0) -> Share:
    return Share(budget, fraction, 0, reserve_s)


def timed(evaluator: Fake, own: Share, *earlier: Trial) -> tuple[list[Trial], float]:
    """The trials of a search, and the seconds it took."""
    start = own.budget.elapsed_s
    found = list(loop.trials(Numbers(), evaluator, own, StoppingRule().resumed(earlier)))
    return found, own.budget.elapsed_s - start


def test_the_reserve_is_left(clock: Clock) -> None:
    own = share(Budget(seconds=100.0), reserve_s=15.0)
    assert own.search_until() - clock.now == 85.0


def test_of_little_time_half_is_left(clock: Clock) -> None:
    own = share(Budget(seconds=100.0), reserve_s=95.0)
    assert own.search_until() - clock.now == 50.0
    clock.sleep(60.0)
    assert own.search_until() - clock.now == 20.0


def test_a_share_ends_where_the_next_begins() -> None:
    budget = Budget(seconds=100.0)
    assert share(budget, fraction=0.5).deadline == budget.start + 50.0
    assert math.isinf(share(Budget(trials=5)).deadline)


def test_what_is_slow_at_the_end_is_abandoned(clock: Clock) -> None:
    slow: dict[int, float] = {5: 60.0}
    evaluator = fake(0.01)
    take = evaluator.next

    def next(wait_s: float = math.inf) -> Trial | None:
        evaluator.pause_s = slow.get(evaluator.pending[0]["A"], 0.01)
        return take(wait_s)

    evaluator.next = next  # type: ignore[method-assign]
    found, took_s = timed(evaluator, share(Budget(seconds=1.0)))
    assert [trial.config["A"] for trial in found] == [0, 1, 2, 3, 4]
    assert took_s == pytest.approx(1.0), "the slow one takes 60 s"


def test_a_search_without_a_right_config_waits_for_what_it_has_started(clock: Clock) -> None:
    found, took_s = timed(fake(0.4), share(Budget(seconds=0.1)))
    assert len(found) == 1 and took_s == pytest.approx(0.4)


def test_a_slow_machine_leaves_more_for_the_check(clock: Clock) -> None:
    evaluator = fake(2.0)
    take = evaluator.next

    def next(wait_s: float = math.inf) -> Trial | None:
        evaluator.reserve_s = 30.0  # as the first compiler took long
        return take(wait_s)

    evaluator.next = next  # type: ignore[method-assign]
    _, took_s = timed(evaluator, share(Budget(seconds=100.0), reserve_s=5.0))
    assert took_s == 70.0


@pytest.mark.parametrize(
    ("default_s", "to_beat_us", "trials", "took_s"),
    [
        (30.0, 80.0, 0, FLOOR_S),  # another kernel has something: the default is cut off
        (15.0, 80.0, 1, 15.0),
        (30.0, math.inf, 1, 30.0),  # nothing is right yet: the only record there can be
    ],
)
def test_a_default_is_waited_for_until_the_floor(
    clock: Clock, default_s: float, to_beat_us: float, trials: int, took_s: float
) -> None:
    own = share(Budget(seconds=1.0))
    start, stopping = clock.now, StoppingRule(to_beat_us=to_beat_us)
    found = list(loop.trials(Numbers(), fake(default_s), own, stopping))
    assert (len(found), clock.now - start) == (trials, took_s)


def test_a_default_that_is_ready_is_taken_after_the_end(clock: Clock) -> None:
    own, stopping = share(Budget(seconds=1.0)), StoppingRule(to_beat_us=80.0)
    clock.sleep(100.0)
    assert [trial.config["A"] for trial in loop.trials(Numbers(), fake(), own, stopping)] == [0]


def test_a_budget_of_trials_has_one_for_each_kernel() -> None:
    later = Share(Budget(trials=2), 1.0, 2, 0.0)
    assert not later.is_used(0) and later.is_used(1)
    assert replace(later, least=0).is_used(0), "a search that goes on knows the default"


def test_one_config_is_tried_however_small_the_budget(clock: Clock) -> None:
    budget = Budget(seconds=0.001)
    clock.sleep(0.01)
    found, _ = timed(fake(), share(budget))
    assert [trial.config["A"] for trial in found] == [0]


def test_a_search_that_knows_a_right_config_ends_at_once_without_time(clock: Clock) -> None:
    budget = Budget(seconds=0.001)
    clock.sleep(0.01)
    found, _ = timed(fake(), share(budget), Trial({"A": 9}, "ok", predicted_us=1.0))
    assert found == []


@pytest.mark.parametrize(("seconds", "in_progress"), [(FLOOR_S / 4, 1), (3 * FLOOR_S, Fake.width)])
def test_failures_do_not_keep_a_search_alive(
    clock: Clock, seconds: float, in_progress: int
) -> None:
    """A config that is under way at the end might be right, so it is waited for. With
    little time there is only one, as others would take the cores from the default."""
    budget = Budget(seconds=seconds)
    found, took_s = timed(fake(seconds / 4, lambda config: "crashed"), share(budget))
    assert [trial.outcome for trial in found] == ["crashed"] * (4 + in_progress - 1)
    assert took_s == seconds / 4 * len(found)


def test_what_was_found_earlier_is_no_gain_again() -> None:
    earlier = [Trial({"A": n}, "ok", predicted_us=50.0) for n in range(10)]
    stopping = StoppingRule().resumed([*earlier, Trial({"A": 99}, "crashed", "because")])
    assert (stopping.best_us, stopping.done, stopping.right) == (50.0, 11, 10)
    stopping.add(Trial({"A": 11}, "ok", predicted_us=60.0))
    assert (stopping.best_us, stopping.since_best) == (50.0, 1)
    stopping.add(Trial({"A": 12}, "ok", predicted_us=40.0))
    assert (stopping.best_us, stopping.since_best) == (40.0, 0)


def test_a_continued_search_by_seconds_ends_on_the_plateau_it_is_on(clock: Clock) -> None:
    found, _ = timed(fake(), share(Budget(seconds=600)), Trial({}, "ok", predicted_us=100.0))
    assert len(found) == 61 + Fake.width - 1  # those under way when it was seen end too


def test_a_kernel_has_lost_after_a_fair_look_at_what_is_right() -> None:
    """Trials that failed are none; far behind is not yet lost, and close behind never."""
    stopping = StoppingRule(to_beat_us=100.0, fair_trials=3)
    for place, (outcome, us) in enumerate(
        [("ok", 140.0), ("crashed", None), ("crashed", None), ("ok", 130.0)]
    ):
        stopping.add(Trial({"A": place}, outcome, predicted_us=us))  # type: ignore[arg-type]
    assert stopping.behind and not stopping.lost
    stopping.add(Trial({"A": 4}, "ok", predicted_us=150.0))
    assert stopping.lost and stopping.slower_by == pytest.approx(0.3)
    stopping.add(Trial({"A": 5}, "ok", predicted_us=114.0))
    assert not stopping.behind and not stopping.lost


def test_nothing_to_beat_is_nothing_to_lose_to() -> None:
    stopping = StoppingRule(fair_trials=0)
    assert not stopping.behind and not stopping.lost
    stopping.add(Trial({}, "ok", predicted_us=1e9))
    assert not stopping.behind and not stopping.lost


@pytest.mark.parametrize("text", ["600s", "50"])
def test_what_is_under_way_when_a_kernel_has_lost_is_abandoned(clock: Clock, text: str) -> None:
    evaluator, budget = fake(), Budget.parse(text)
    stopping = StoppingRule(to_beat_us=80.0, fair_trials=5)
    assert len(list(loop.trials(Numbers(), evaluator, share(budget), stopping))) == 5
    assert len(evaluator.pending) == Fake.width - 1
    assert list(loop.trials(Numbers(), evaluator, share(budget), stopping)) == []


def test_a_share_of_trials_is_used_by_the_last_of_them() -> None:
    """However it was rounded: 0.2 + 0.2 + 0.2 is more than 0.6."""
    own = Share(Budget(trials=10), 0.2 + 0.2 + 0.2, 4, 0.0)
    assert not own.is_used(1) and own.is_used(2)


def test_a_plateau_is_a_third_of_all_trials_and_the_patience_at_least() -> None:
    for done, longest in ((61, 60), (180, 60), (300, 100), (301, 100)):
        stopping = StoppingRule(best_us=1.0, done=done)
        assert not replace(stopping, since_best=longest).on_plateau
        assert replace(stopping, since_best=longest + 1).on_plateau


def test_where_only_the_fit_is_asked_for_patience_is_longer() -> None:
    kinds: tuple[ObjectiveKind, ...] = get_args(ObjectiveKind)
    assert {kind: loop.patience(kind) for kind in kinds} == {
        **dict.fromkeys(kinds, 60), "modelled": 200,
    }  # fmt: skip


@pytest.mark.parametrize(("us", "behind"), [(114.9, False), (115.1, True)])
def test_a_kernel_is_behind_from_fifteen_percent_on(us: float, behind: bool) -> None:
    assert StoppingRule(to_beat_us=100.0, best_us=us).behind is behind


def test_one_program_counts_once() -> None:
    """The plateau and the fair look count programs, not the configs that compile to one."""

    def of(code: str | None, us: float) -> Trial:
        resources = None if code is None else Resources(code=code)
        return Trial({}, "ok", resources=resources, predicted_us=us)

    rule = StoppingRule()
    for trial in (of("ab", 10.0), of("ab", 10.0), of("ab", 12.0), of("cd", 10.0), of(None, 10.0)):
        rule.add(trial)
    assert (rule.done, rule.right, rule.since_best) == (4, 4, 3)
    later = StoppingRule().resumed([of("ab", 10.0), of("ab", 10.0)])
    later.add(of("ab", 10.0))
    assert (later.done, later.since_best, later.best_us) == (1, 0, 10.0)


def test_a_strategy_with_nothing_left_is_asked_again_after_each_trial() -> None:
    """The one in progress may fail, and then another is worth a trial."""

    class Waiting(Numbers):
        told = 0

        def ask(self) -> Config | None:
            return super().ask() if self.asked <= self.told and self.asked < 3 else None

        def tell(self, trial: Trial) -> None:
            self.told += 1

    strategy, stopping, found = Waiting(), StoppingRule(), []
    for trial in loop.trials(strategy, fake(), share(Budget(trials=10)), stopping):
        strategy.tell(trial)
        found.append(trial.config["A"])
    assert found == [0, 1, 2] and stopping.none_left
    strategy, stopping = Waiting(), StoppingRule()
    next(loop.trials(strategy, fake(), share(Budget(trials=10)), stopping))
    assert not stopping.none_left, "the trial may change what is left"
    stopping = StoppingRule()
    assert len(list(loop.trials(Numbers(), fake(), share(Budget(trials=2)), stopping))) == 2
    assert not stopping.none_left, "the budget was used"


def test_with_the_gpu_it_asks_for_little_where_the_strategy_takes_its_time(clock: Clock) -> None:
    class Slow(Numbers):
        pause_s = 0.02

        def ask(self) -> Config | None:
            time.sleep(self.pause_s if self.asked >= 4 else 0.0)  # four are prepared
            return super().ask()

    own = replace(share(Budget(trials=20)), turn=Turns().new("", 1.0))
    evaluator, strategy, asked = fake(), Slow(), []
    evaluator.width = 8
    for _ in loop.trials(strategy, evaluator, own, StoppingRule()):
        asked.append(strategy.asked)
    assert asked[:3] == [5, 7, 9], "what is prepared at once, then two for each trial"
    strategy = Slow()
    next(loop.trials(strategy, evaluator, replace(own, turn=None), StoppingRule()))
    assert strategy.asked == 8, "without others that wait for the GPU"
