"""tunefa/report/convergence.py: the steps of searches as a plot and a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.support import sample_report
from tunefa.experiments.table import Table
from tunefa.report import convergence
from tunefa.report.content import Content
from tunefa.report.part import Plot
from tunefa.report.search import KernelTrials, Search, Step

SEARCH = sample_report.search()
(KERNEL,) = SEARCH.kernels
UNTIMED = replace(KERNEL, steps=[replace(each, seconds=None) for each in KERNEL.steps])
FAILED = KernelTrials("broken", 3, 3, [], None)


def blocks(search: Search) -> list[object]:
    (part,) = convergence.section(Content(searches=[search])).parts
    return list(part.blocks)


def test_the_table_says_when_the_best_was_found() -> None:
    *_, table = blocks(SEARCH)
    assert isinstance(table, Table)
    assert table.rows == [["a_kernel", "6", "1", "500.0", "430.0", "5", "4.0"]]


def test_both_panels_have_the_steps() -> None:
    canvas = Figure()
    convergence.draw([KERNEL], "measured", canvas)
    by_place, by_seconds = (np.asarray(axes.lines[0].get_xydata()) for axes in canvas.axes)
    assert by_place.tolist() == [[1, 500], [2, 450], [5, 430], [6, 430]]
    assert by_seconds.tolist() == [[0, 500], [1, 450], [4, 430], [5, 430]]


def test_without_seconds_there_is_one_panel_and_a_sentence() -> None:
    canvas = Figure()
    convergence.draw([UNTIMED], "measured", canvas)
    assert len(canvas.axes) == 1
    _, plot, table = blocks(replace(SEARCH, kernels=[UNTIMED]))
    assert isinstance(plot, Plot) and "does not say the seconds" in plot.caption
    assert isinstance(table, Table) and table.rows[0][-1] == "–"


@pytest.mark.parametrize(
    ("kernels", "said"),
    [([], "This search has no trials."), ([FAILED], "No config of this search has a time.")],
)
def test_a_search_without_times_has_a_sentence(kernels: list[KernelTrials], said: str) -> None:
    found = blocks(replace(SEARCH, kernels=kernels))
    assert said in found and not any(isinstance(each, Plot) for each in found)


def test_a_failed_kernel_has_dashes() -> None:
    *_, table = blocks(replace(SEARCH, kernels=[KERNEL, FAILED]))
    assert isinstance(table, Table)
    assert table.rows[1] == ["broken", "3", "3", "–", "–", "–", "–"]


def test_times_of_one_size_and_of_several_decades_have_ticks() -> None:
    for times in ([100.0], [100.0, 99.0], [1e6, 10.0]):
        steps = [Step(place, us, 1.0) for place, us in enumerate(times, start=1)]
        canvas = Figure()
        convergence.draw([replace(KERNEL, steps=steps)], "measured", canvas)
        axes = canvas.axes[0]
        low, high = axes.get_ylim()
        assert low < min(times) and max(times) < high
        assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2


def test_no_journals() -> None:
    section = convergence.section(Content(remarks={"journals": ["one was left out"]}))
    assert section.empty and list(section.remarks) == ["one was left out"]
