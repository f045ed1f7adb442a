"""tunefa/report/heat_maps.py: the best times over two parameters as colours and figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tests.support import sample_report
from tunefa.report import heat_maps
from tunefa.report.content import Content
from tunefa.report.part import Plot
from tunefa.report.search import Cell, HeatMap

SEARCH = sample_report.search()
HELD = SEARCH.kernels[0].heat_map
assert HELD is not None


def test_the_values_are_in_order() -> None:
    odd = HeatMap("M", "N", [Cell(8, "x", 1.0, 1), Cell(2, "a", 1.0, 1), Cell("b", "x", 1.0, 1)])
    assert heat_maps.axes_of(odd) == ([2, 8, "b"], ["a", "x"])


def test_each_cell_has_its_time() -> None:
    canvas = Figure()
    assert HELD is not None
    heat_maps.draw(HELD, canvas)
    (axes,) = canvas.axes
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts == {
        (0.5, 0.5): "500",
        (1.5, 0.5): "430",
        (0.5, 1.5): "470",
        (1.5, 1.5): "✕",
        (0.5, 2.5): "900",
    }
    grid: Any = np.ma.filled(np.ma.asarray(axes.collections[0].get_array()), np.nan)
    assert np.nanmin(grid) == 430.0 and grid[0][1] == 430.0 and np.isnan(grid[2][1])


def test_cells_of_one_time_and_cells_that_all_failed_are_drawn() -> None:
    same = [Cell(m, n, 5.0, 1) for m in (1, 2) for n in (1, 2)]
    heat_maps.draw(HeatMap("M", "N", same), Figure())
    heat_maps.draw(HeatMap("M", "N", [Cell("<b>$", "$x^", None, 1)]), Figure())


def test_a_search_without_a_map_is_counted() -> None:
    few = replace(SEARCH, kernels=[replace(SEARCH.kernels[0], heat_map=None)])
    section = heat_maps.section(Content(searches=[SEARCH, few]))
    (part,) = section.parts
    assert [type(block) for block in part.blocks] == [str, Plot]
    assert list(section.remarks) == ["1 of 2 searches tried too few pairs of tile sizes for one."]
    alone = heat_maps.section(Content(searches=[few]))
    assert not alone.parts and alone.empty.startswith("No search on this page")
    assert heat_maps.section(Content()).empty.startswith("There are no journals")
