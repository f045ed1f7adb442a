"""tunefa/report/part.py: texts that anyone may have written, made fit for a page and a plot."""

from __future__ import annotations

import pytest

from tunefa.errors import TunefaError
from tunefa.report import part


def test_what_cannot_be_shown_is_replaced() -> None:
    assert part.printable("a\x00b\u202ec\ud800d\ne") == "a\ufffdb\ufffdc\ufffdd\ne"


def test_a_label_is_short_and_no_formula() -> None:
    assert part.plain("$x^2$\x07") == "\\$x^2\\$\ufffd"
    assert len(part.plain("a" * 1000)) < 70


def test_a_long_text_is_one_paragraph() -> None:
    assert part.shortened(" a\n b ") == "a b"
    assert part.shortened("word " * 100, 10) == "word word …"


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(1, "search", "1 search"), (2, "search", "2 searches"), (1200, "winner", "1,200 winners")],
)
def test_plurals(count: int, noun: str, text: str) -> None:
    assert part.plural(count, noun) == text


def test_the_reason_of_an_error() -> None:
    assert part.why_unreadable(TunefaError("so it is")) == "so it is"
    assert "KeyError: 'workload'" in part.why_unreadable(KeyError("workload"))
