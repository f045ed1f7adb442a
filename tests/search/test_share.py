"""tunefa/search/share.py: how much of a budget a kernel has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.clock import Clock
from tunefa.search.budget import Budget
from tunefa.search.gpu_turns import Turns
from tunefa.search.share import Share


def test_a_budget_of_trials_has_one_for_each_kernel() -> None:
    later = Share(Budget(trials=2), 1.0, 2, 0.0)
    assert not later.is_used(0) and later.is_used(1)
    assert replace(later, least=0).is_used(0), "a search that goes on knows the default"


def test_a_share_of_trials_is_used_by_the_last_of_them() -> None:
    """However it was rounded: 0.2 + 0.2 + 0.2 is more than 0.6."""
    own = Share(Budget(trials=10), 0.2 + 0.2 + 0.2, 4, 0.0)
    assert not own.is_used(1) and own.is_used(2)


def test_a_search_that_shares_its_gpu_ends_when_the_race_must_begin(clock: Clock) -> None:
    own = Share(Budget(seconds=100.0), 1.0, 0, 80.0, turn=Turns().new("", 1.0))
    assert own.search_until() - clock.now == 20.0 and not own.is_over
    clock.sleep(20.0)
    assert own.is_over and not replace(own, turn=None).is_over
    clock.sleep(30.0)
    assert own.search_until() - clock.now == pytest.approx(5.0), "most is for the race"
