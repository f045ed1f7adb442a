"""The belief of the surrogate after some trials."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tunefa.search.surrogate import Surrogate

PLACES = np.array(list(itertools.product(range(5), range(4), range(2), [0])))
EXPECTED = 100.0 * (1 + 0.1 * PLACES[:, 0])
TRUE = EXPECTED * (1 + 0.3 * (PLACES[:, 1] == 2))
"""The second parameter has an effect that the model does not know, the third has none."""


def some(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).permutation(len(PLACES))[:count]]


def surrogate() -> Surrogate:
    return Surrogate(PLACES, EXPECTED.tolist())


def test_without_trials_it_believes_the_model() -> None:
    belief = surrogate().believe([], [], {}, [])
    assert belief.mean == pytest.approx(np.log(EXPECTED))
    assert belief.best == np.inf
    assert (belief.works == 1).all()


def test_a_scale_is_learned_from_one_trial() -> None:
    belief = surrogate().believe([7], [3 * float(EXPECTED[7])], {}, [])
    assert np.exp(belief.mean) == pytest.approx(3 * EXPECTED)


def test_it_agrees_with_the_trials_and_is_surest_there() -> None:
    done = some(15)
    belief = surrogate().believe(done, TRUE[done].tolist(), {}, [])
    assert np.exp(belief.mean[done]) == pytest.approx(TRUE[done], rel=0.02)
    others = [i for i in range(len(PLACES)) if i not in done]
    assert belief.sd[done].max() < belief.sd[others].min()
    assert belief.best == pytest.approx(np.log(TRUE[done].min()))


def test_it_learns_what_the_model_does_not_know() -> None:
    done = some(20)
    belief = surrogate().believe(done, TRUE[done].tolist(), {}, [])
    error = np.abs(belief.mean - np.log(TRUE))
    assert np.sqrt((error**2).mean()) < 0.04
    assert np.sqrt((np.log(EXPECTED / TRUE) ** 2).mean()) > 0.1


def test_what_is_under_way_changes_doubts_but_not_expectations() -> None:
    done = some(10)
    alone = surrogate().believe(done, TRUE[done].tolist(), {}, [])
    left = next(i for i in range(len(PLACES)) if i not in done)
    busy = surrogate().believe(done, TRUE[done].tolist(), {}, [left])
    assert busy.mean == pytest.approx(alone.mean)
    assert busy.sd[left] < 0.3 * alone.sd[left]
    assert (busy.sd <= alone.sd + 1e-9).all()
    assert busy.expected_improvement()[left] < alone.expected_improvement()[left]


def test_failures_make_their_neighbours_doubtful() -> None:
    failed = [int(i) for i in np.flatnonzero(PLACES[:, 0] == 4)[:4]]
    done = [int(i) for i in np.flatnonzero(PLACES[:, 0] == 0)[:4]]
    belief = surrogate().believe(done, TRUE[done].tolist(), dict.fromkeys(failed, 1.0), [])
    assert belief.works[PLACES[:, 0] == 4].max() < belief.works[PLACES[:, 0] == 0].min()
    assert belief.works[failed].max() < 0.5 < belief.works[done].min()


def test_when_everything_failed_what_is_furthest_is_most_likely_to_work() -> None:
    belief = surrogate().believe([], [], {0: 1.0}, [])
    assert belief.works.argmin() == 0
    assert belief.works.argmax() == len(PLACES) - 1


@pytest.mark.parametrize("times", [[1e-300, 1.0, 1e300, 5.0, 5.0], [5.0] * 5])
def test_odd_times_leave_finite_beliefs(times: list[float]) -> None:
    belief = surrogate().believe(some(5), times, {}, [])
    gain = belief.expected_improvement()
    assert np.isfinite(gain).all() and (gain >= 0).all()


def test_configs_that_the_model_rules_out_count_as_its_worst() -> None:
    expected = [np.inf, *EXPECTED[1:].tolist()]
    belief = Surrogate(PLACES, expected).believe([1], [100.0], {}, [])
    assert np.isfinite(belief.mean).all()
    assert belief.mean[0] == belief.mean.max()


def test_more_trials_than_a_fit_uses() -> None:
    places = np.array(list(itertools.product(range(20), range(20))))
    true = 100.0 + places[:, 0] + (places[:, 1] - 7) ** 2
    done = [int(i) for i in np.random.default_rng(0).permutation(400)[:300]]
    belief = Surrogate(places, [100.0] * 400).believe(done, true[done].tolist(), {}, [])
    assert places[belief.mean.argmin()] == pytest.approx([0, 7], abs=1)


def test_what_only_just_failed_says_less_of_its_neighbours() -> None:
    near = surrogate().believe([], [], {0: 0.1}, []).works
    far = surrogate().believe([], [], {0: 1.0}, []).works
    assert far[0] < near[0] < 0.5 and far[1] < near[1]


def test_what_is_known_beforehand_is_believed_until_it_fails_to_hold() -> None:
    works_prior = np.where(np.arange(len(PLACES)) < 8, -1.0, 1.0)
    alone = Surrogate(PLACES, EXPECTED.tolist(), works_prior.tolist())
    works = alone.believe([], [], {}, []).works
    assert (works[:8] < 0.5).all() and (works[8:] > 0.5).all()
    seen = alone.believe([3], [float(EXPECTED[3])], {}, []).works
    assert seen[3] > 0.5


def test_where_the_times_are_known_only_what_is_faster_is_worth_trying() -> None:
    exact = Surrogate(PLACES, EXPECTED.tolist(), exact=True)
    belief = exact.believe([20], [float(EXPECTED[20])], {0: 1.0}, [])
    gain = belief.expected_improvement()
    faster = EXPECTED[20] > EXPECTED
    assert (gain[faster] > 0).all() and (gain[~faster] == 0).all()
    assert gain[0] < gain[3], "one that failed is less likely to work than one far from it"


@pytest.mark.parametrize("exact", [False, True])
def test_configs_in_focus_are_believed_in_as_among_all(exact: bool) -> None:
    prior = np.where(np.arange(len(PLACES)) < 8, -0.5, 1.0).tolist()
    whole, made = (Surrogate(PLACES, EXPECTED.tolist(), prior, exact) for _ in range(2))
    (failed, begun, *done), focus = some(12), np.array([2, 30, 17])
    given = done, TRUE[done].tolist(), {failed: 1.0}, [begun]
    made.focus(focus)
    of_all, found = whole.believe(*given), made.believe(*given)
    for mine, own in (
        (found.mean, of_all.mean),
        (found.sd, of_all.sd),
        (found.works, of_all.works),
    ):
        assert mine == pytest.approx(own[focus])
    assert found.best == of_all.best
    assert found.expected_improvement() == pytest.approx(of_all.expected_improvement()[focus])
