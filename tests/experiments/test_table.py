"""Tables of experiments, in Markdown, and the form of figures."""

from __future__ import annotations

import math

from tunefa.experiments.table import NO_VALUE, Table, number, percent, times


def test_markdown() -> None:
    table = Table("t", ("name", "us\nmedian"), [["a|b", "1.5"]], ["Said."], frozenset({"name"}))
    assert table.markdown().splitlines() == [
        "| name | us median |", "| --- | ---: |", "| a\\|b | 1.5 |", "", "Said.",
    ]  # fmt: skip


def test_figures() -> None:
    assert number(1234.56, 1) == "1,234.6" and number(3) == "3"
    assert times(2.7) == "2.70×" and times(31.4, 0) == "31×"
    assert percent(0.95) == "95.0 %" and percent(-0.387) == "-38.7 %"


def test_missing_figures_are_dashes() -> None:
    for value in (None, math.inf, math.nan):
        assert number(value) == times(value) == percent(value) == NO_VALUE
