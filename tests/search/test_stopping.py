"""tunefa/search/stopping.py: what counts as a gain, and when a kernel has lost."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from tunefa.search import stopping as rules
from tunefa.search.stopping import StoppingRule
from tunefa.spec.trial import Resources, Trial
from tunefa.store.record import ObjectiveKind


def test_what_was_found_earlier_is_no_gain_again() -> None:
    earlier = [Trial({"A": n}, "ok", predicted_us=50.0) for n in range(10)]
    stopping = StoppingRule().resumed([*earlier, Trial({"A": 99}, "crashed", "because")])
    assert (stopping.best_us, stopping.done, stopping.right) == (50.0, 11, 10)
    stopping.add(Trial({"A": 11}, "ok", predicted_us=60.0))
    assert (stopping.best_us, stopping.since_best) == (50.0, 1)
    stopping.add(Trial({"A": 12}, "ok", predicted_us=40.0))
    assert (stopping.best_us, stopping.since_best) == (40.0, 0)


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


def test_a_plateau_is_a_third_of_all_trials_and_the_patience_at_least() -> None:
    for done, longest in ((61, 60), (180, 60), (300, 100), (301, 100)):
        stopping = StoppingRule(best_us=1.0, done=done)
        assert not replace(stopping, since_best=longest).on_plateau
        assert replace(stopping, since_best=longest + 1).on_plateau


def test_where_only_the_fit_is_asked_for_patience_is_longer() -> None:
    kinds: tuple[ObjectiveKind, ...] = get_args(ObjectiveKind)
    assert {kind: rules.patience(kind) for kind in kinds} == {
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


def test_what_was_not_expected_to_gain_counts_only_if_it_does() -> None:
    """Such a trial is free, so it is no sign that nothing gets better."""
    rule = StoppingRule(best_us=100.0)
    rule.add(Trial({"A": 1}, "ok", predicted_us=120.0), counts=False)
    assert (rule.done, rule.right, rule.since_best, rule.best_us) == (0, 0, 0, 100.0)
    rule.add(Trial({"A": 2}, "ok", predicted_us=120.0))
    assert (rule.done, rule.since_best) == (1, 1)
    rule.add(Trial({"A": 3}, "ok", predicted_us=90.0), counts=False)
    assert (rule.done, rule.since_best, rule.best_us) == (1, 0, 90.0)
