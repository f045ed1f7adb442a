"""The table of an experiment: texts in rows, which a terminal, Markdown and HTML show alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NO_VALUE = "–"
"""The cell of a figure that is not known."""


@dataclass(frozen=True)
class Table:
    """A table of figures and words."""

    title: str
    head: Sequence[str]
    """The titles of the columns; a line break separates a name from its unit."""
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()
    """Sentences that stand below the table."""
    words: frozenset[str] = frozenset()
    """The columns that hold words, by title: they are aligned left, and figures right."""

    def markdown(self) -> str:
        """The table in Markdown, with its remarks as paragraphs, without its title."""
        rule = ["---" if column in self.words else "---:" for column in self.head]
        head = [column.replace("\n", " ") for column in self.head]
        lines = [head, rule, *([_escaped(cell) for cell in row] for row in self.rows)]
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return "\n".join([text, *(f"{remark}\n" for remark in self.remarks)])


def number(value: float | None, digits: int = 0) -> str:
    """Writes a figure with separated thousands; a dash for None and for what is not finite."""
    if value is None or not math.isfinite(value):
        return NO_VALUE
    return f"{value:,.{digits}f}"


def times(value: float | None, digits: int = 2) -> str:
    """Writes a ratio, such as 2.70×."""
    return NO_VALUE if value is None or not math.isfinite(value) else f"{value:,.{digits}f}×"


def percent(value: float | None, digits: int = 1) -> str:
    """Writes a share of 1 in percent, such as 95.0 %."""
    text = number(None if value is None else 100 * value, digits)
    return text if text == NO_VALUE else f"{text} %"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
