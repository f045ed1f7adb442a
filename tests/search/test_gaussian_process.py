"""tunefa/search/gaussian_process.py: its slopes, what it fits, and what it believes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.optimize

from tunefa.search import gaussian_process
from tunefa.search.gaussian_process import Array, Process

PLACES = np.array(list(itertools.product(range(5), range(4), [0])))
"""The third parameter has one value only."""
KNOWN = np.random.default_rng(0).permutation(len(PLACES))[:12]
VALUES = np.sin(PLACES[KNOWN, 0]) + 0.1 * PLACES[KNOWN, 1]
NOISE = 0.05
Loss = Callable[[Array], tuple[float, Array]]


def process(places: Any = PLACES, amplitude: float = 0.5) -> Process:
    """A process with a trend of a constant and of the first parameter."""
    trend = np.c_[np.ones(len(places)), 0.3 * places[:, 0]]
    return Process(places, trend, amplitude, NOISE)


@pytest.fixture
def minimised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Loss, dict[str, Any]]]:
    """The losses that are minimised, with their options; where they begin is where they end."""
    seen: list[tuple[Loss, dict[str, Any]]] = []

    def minimize(loss: Loss, start: Array, **options: Any) -> Any:
        seen.append((loss, {"start": start, **options}))
        return SimpleNamespace(x=start)

    monkeypatch.setattr(gaussian_process, "minimize", minimize)
    return seen


def textbook(made: Process, known: Any, values: Array, sure: Any) -> tuple[Array, Array]:
    """Rasmussen and Williams, equations 2.23 and 2.24, with what the process has fitted."""
    trend = np.c_[np.ones(len(PLACES)), 0.3 * PLACES[:, 0]]
    *weights, amplitude = np.exp(made._fitted)
    steps = np.abs(PLACES[:, None, :2] - PLACES[:, :2]) @ weights
    prior = amplitude**2 * np.exp(-steps) + trend @ trend.T

    def given(seen: Any) -> tuple[Array, Array]:
        noise = NOISE**2 * np.eye(len(seen))
        return prior[seen], np.linalg.inv(prior[np.ix_(seen, seen)] + noise)

    across, inverse = given(known)
    mean = across.T @ inverse @ values
    across, inverse = given(np.r_[known, sure])
    variance = np.diag(prior) - np.einsum("ij,ik,kj->j", across, inverse, across)
    return mean, np.sqrt(variance)


def test_what_is_kept_from_one_posterior_to_the_next_changes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Configs begin, become known, and go, as those do that fail or are no part of the next fit."""
    made, asked = process(), list[int]()
    covariance = Process._covariance

    def counted(self: Process, some: Any, weighted: Array, trends: Array) -> Array:
        if len(weighted) == len(PLACES):
            asked.append(len(some))
        return covariance(self, some, weighted, trends)

    monkeypatch.setattr(Process, "_covariance", counted)
    made.fit(KNOWN, VALUES)
    for known, sure in (
        (range(4), (4, 5)), (range(5), (5, 6)), (range(5), (6, 7, 8)), (range(1, 5), (8,)),
        ((3, 7, 2), (1, 9)), ((), (2,)), ((), ()), (range(12), ()),
    ):  # fmt: skip
        places = KNOWN[list(known)], VALUES[list(known)], KNOWN[list(sure)]
        for mine, direct in zip(made.posterior(*places), textbook(made, *places), strict=True):
            assert mine == pytest.approx(direct, rel=1e-9, abs=1e-12)
    assert asked == [6, 1, 2, 2, 12], "only those of new configs"
    made._fitted_to = 0
    made.fit(KNOWN, VALUES)
    made.posterior(KNOWN[:6], VALUES[:6], KNOWN[:0])
    assert asked[-1] == 6, "another fit has other covariances"


def test_configs_in_focus_are_predicted_as_among_all() -> None:
    """Also from values of configs that are not in focus, and when the focus changes again."""
    whole, made = process(), process()
    some = np.array([3, 5, 11, 17])
    for focus in (some, np.array([5, 2]), np.arange(len(PLACES))):
        for each in (whole, made):
            each.fit(KNOWN, VALUES)
        made.focus(focus)
        for count in (6, 8):
            given = KNOWN[:count], VALUES[:count], KNOWN[count : count + 2]
            for mine, own in zip(made.posterior(*given), whole.posterior(*given), strict=True):
                assert mine == pytest.approx(own[focus], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_the_slopes_are_those_of_the_loss(
    minimised: list[tuple[Loss, dict[str, Any]]], seed: int
) -> None:
    process().fit(KNOWN, VALUES)
    ((loss, options),) = minimised
    logs = options["start"] + np.random.default_rng(seed).normal(0.0, 0.7, len(options["start"]))
    _, slopes = loss(logs)
    assert len(slopes) == 3, "two weights and the amplitude: a constant parameter has none"
    step = 1e-5
    for place in range(len(logs)):
        above, below = logs.copy(), logs.copy()
        above[place] += step
        below[place] -= step
        measured = (loss(above)[0] - loss(below)[0]) / (2 * step)
        assert slopes[place] == pytest.approx(measured, rel=1e-5, abs=1e-6)


def test_a_fit_is_more_likely_than_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Loss, Any]] = []

    def remember(loss: Loss, start: Array, **options: Any) -> Any:
        found.append((loss, scipy.optimize.minimize(loss, start, **options)))
        return found[-1][1]

    monkeypatch.setattr(gaussian_process, "minimize", remember)
    process().fit(KNOWN, VALUES)
    ((loss, result),) = found
    assert loss(result.x)[0] < loss(np.log([0.3, 0.3, 0.5]))[0]
    for change in 0.05 * np.r_[np.eye(3), -np.eye(3)]:
        assert loss(result.x + change)[0] > loss(result.x)[0]


def test_few_values_and_few_new_ones_are_not_worth_a_fit(
    minimised: list[tuple[Loss, dict[str, Any]]],
) -> None:
    made = process()
    fits = []
    for count in (0, 3, 4, 4, 10, 10, 12):
        made.fit(KNOWN[:count], VALUES[:count])
        fits.append(len(minimised))
    assert fits == [0, 0, 1, 1, 2, 2, 3]


def test_the_next_fit_begins_where_the_last_ended(
    minimised: list[tuple[Loss, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = np.array([-1.0, -2.0, -0.5])
    made = process()
    with monkeypatch.context() as patch:
        patch.setattr(gaussian_process, "minimize", lambda *_, **__: SimpleNamespace(x=ended))
        made.fit(KNOWN[:6], VALUES[:6])
    made.fit(KNOWN, VALUES)
    ((_, options),) = minimised
    assert (options["start"] == ended).all()


def test_what_was_fitted_is_what_is_believed() -> None:
    taught, untaught = process(), process()
    taught.fit(KNOWN, VALUES)
    nothing = KNOWN[:0]
    assert taught.posterior(KNOWN, VALUES, nothing)[1] != pytest.approx(
        untaught.posterior(KNOWN, VALUES, nothing)[1]
    )


def test_the_posterior_is_that_of_the_textbook() -> None:
    made = process()
    mean, sd = made.posterior(KNOWN, VALUES, KNOWN[:0])
    expected = textbook(made, KNOWN, VALUES, KNOWN[:0])
    assert np.exp(made._fitted) == pytest.approx([0.3, 0.3, 0.5])
    assert mean == pytest.approx(expected[0])
    assert sd == pytest.approx(expected[1])


def test_what_is_sure_changes_the_doubt_only() -> None:
    made = process()
    sure = np.array([i for i in range(len(PLACES)) if i not in KNOWN])[:2]
    mean, sd = made.posterior(KNOWN, VALUES, KNOWN[:0])
    same, less = made.posterior(KNOWN, VALUES, sure)
    assert same == pytest.approx(mean)
    assert less[sure] == pytest.approx(NOISE, rel=0.1) and (less <= sd + 1e-9).all()
    assert (less[sure] < sd[sure] / 4).all()


def test_without_values_there_is_the_prior() -> None:
    mean, sd = process().posterior(KNOWN[:0], VALUES[:0], KNOWN[:0])
    assert (mean == 0.0).all()
    assert sd == pytest.approx(np.sqrt(0.5**2 + 1.0 + (0.3 * PLACES[:, 0]) ** 2))
