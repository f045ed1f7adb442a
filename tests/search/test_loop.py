"""tunefa/search/loop.py: when a search starts no more, what it waits for, and what it abandons."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.fake_objective import KERNEL, Fake, request
from tests.support.numbered_configs import Numbers
from tunefa.search import loop
from tunefa.search.budget import FLOOR_S, Budget
from tunefa.search.share import Share
from tunefa.search.stopping import StoppingRule
from tunefa.spec.trial import Config, Trial


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


def test_a_continued_search_by_seconds_ends_on_the_plateau_it_is_on(clock: Clock) -> None:
    found, _ = timed(fake(), share(Budget(seconds=600)), Trial({}, "ok", predicted_us=100.0))
    assert len(found) == 61 + Fake.width - 1  # those under way when it was seen end too


@pytest.mark.parametrize("text", ["600s", "50"])
def test_what_is_under_way_when_a_kernel_has_lost_is_abandoned(clock: Clock, text: str) -> None:
    evaluator, budget = fake(), Budget.parse(text)
    stopping = StoppingRule(to_beat_us=80.0, fair_trials=5)
    assert len(list(loop.trials(Numbers(), evaluator, share(budget), stopping))) == 5
    assert len(evaluator.pending) == Fake.width - 1
    assert list(loop.trials(Numbers(), evaluator, share(budget), stopping)) == []


def test_a_strategy_with_nothing_left_is_asked_again_after_each_trial() -> None:
    """The one in progress may fail, and then another is worth a trial."""

    class Waiting(Numbers):
        told = 0

        def ask(self, compiled: bool = False) -> Config | None:
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
