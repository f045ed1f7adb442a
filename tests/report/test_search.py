"""tunefa/report/search.py: the steps of a search and its heat map."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import sample_report
from tests.support.sample_report import TRIALS, trial
from tunefa.errors import TunefaError
from tunefa.report import search as searches
from tunefa.report.search import Cell, Search, Step


def test_steps_are_the_gains_and_the_end() -> None:
    (kernel,) = searches.of_trials([("k", each, float(i)) for i, each in enumerate(TRIALS)])
    assert (kernel.kernel, kernel.trials, kernel.failed) == ("k", 6, 1)
    # The race at the end times a config again, and is no evaluation.
    assert kernel.steps == [
        Step(1, 500.0, 0.0),
        Step(2, 450.0, 1.0),
        Step(5, 430.0, 4.0),
        Step(6, 430.0, 5.0),
    ]


def test_kernels_share_the_count_of_evaluations() -> None:
    named = [("a", trial(64, 64, 9.0)), ("b", trial(64, 64, 8.0)), ("a", trial(64, 128, 7.0))]
    first, second = searches.of_trials([(*each, None) for each in named])
    assert [step.evaluation for step in first.steps] == [1, 3]
    assert [step.evaluation for step in second.steps] == [2]
    assert first.steps[0].seconds is None


def test_a_search_in_which_all_failed_has_no_steps() -> None:
    (kernel,) = searches.of_trials([("k", trial(64, 64), None)])
    assert (kernel.failed, list(kernel.steps), kernel.heat_map) == (1, [], None)


def test_a_heat_map_has_the_best_time_of_each_cell() -> None:
    held = searches.heat_map(TRIALS[:6])
    assert held is not None and (held.row_name, held.column_name) == ("BLOCK_M", "BLOCK_N")
    assert held.cells == [
        Cell(64, 64, 500.0, 1),
        Cell(64, 128, 430.0, 2),
        Cell(128, 64, 470.0, 1),
        Cell(128, 128, None, 1),
        Cell(256, 64, 900.0, 1),
    ]


def test_the_next_pair_is_taken_where_one_does_not_vary() -> None:
    trials = [trial(64, n, 1.0, stages=s) for n in (64, 128) for s in (2, 3)]
    held = searches.heat_map(trials)
    assert held is not None and (held.row_name, held.column_name) == ("BLOCK_N", "num_stages")
    assert searches.heat_map(trials[:3]) is None


def test_numbers_come_before_texts() -> None:
    values: list[searches.Scalar] = ["b", 2, 1.5, "a"]
    assert sorted(values, key=searches.sort_key) == [1.5, 2, "a", "b"]


def test_plain_data_comes_back() -> None:
    made = sample_report.search()
    assert Search.from_data(json.loads(json.dumps(made.to_data())), "here") == made


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (("device",), 3, "'device' must be"),
        (("workload",), "q0", "workload 'q0'"),
        (("kernels",), [3], "expected a mapping"),
        (("kernels", 0, "steps"), [[1, 2.0]], "is no list of 3 values"),
        (("kernels", 0, "steps"), [["1", 2.0, None]], "must be"),
        (("kernels", 0, "heat_map"), {"row_name": "M"}, "'column_name' is missing"),
        (("kernels", 0, "heat_map", "cells"), [[1, 2, "x", 1]], "must be"),
        (("odd",), 1, "unknown key 'odd'"),
    ],
)
def test_damaged_data_is_one_sentence(at: tuple[Any, ...], value: Any, says: str) -> None:
    data = sample_report.search().to_data()
    place: Any = data
    for name in at[:-1]:
        place = place[name]
    place[at[-1]] = value
    with pytest.raises(TunefaError) as raised:
        Search.from_data(data, "here")
    assert says in str(raised.value)
