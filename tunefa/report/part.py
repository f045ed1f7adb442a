"""The parts of a page: sections of tables, plots and sentences, without any HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunefa.errors import TunefaError
from tunefa.experiments.figure import Draw
from tunefa.experiments.table import Table


@dataclass(frozen=True)
class Plot:
    """A plot and the words for it."""

    draw: Draw
    label: str
    """A description of the plot, for readers who do not see it."""
    caption: str
    """The words on how to read it."""
    size: tuple[float, float] = (9.0, 4.2)
    """Width and height in inches; a text of 10 points is as large as the page's at 9 inches."""


UNREADABLE = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, TunefaError)
"""The errors with which an experiment refuses rows that are not its own: it trusts its document,
which anyone may have written."""
Block = Table | Plot | str
"""A table, a plot, or a paragraph."""


@dataclass(frozen=True)
class Part:
    """Blocks that belong together in a section, under a title of their own."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Section:
    """One section of the page."""

    name: str
    """Its anchor."""
    title: str
    about: str
    """The words on what it shows, and on how to read it."""
    parts: Sequence[Part] = ()
    empty: str = ""
    """The reason that it has no parts, and the command that makes some."""
    remarks: Sequence[str] = ()
    """Notes on what was left out, and why."""


_LABEL = 60
"""The most characters of a label in a plot, which does not break lines."""


def printable(text: str) -> str:
    """Returns the text with U+FFFD for characters that cannot be shown or that change how others
    are, such as control characters and half characters; a file that anyone wrote may have them."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in text)


def why_unreadable(error: Exception) -> str:
    """Returns the reason of one of `UNREADABLE`, in words."""
    if isinstance(error, TunefaError):
        return str(error)
    return f"its rows are not those of this experiment ({type(error).__name__}: {error})"


def plain(text: str) -> str:
    """Returns the text for a label of a plot: short, and no formula, which matplotlib would read
    between dollar signs."""
    return printable(shortened(text, _LABEL)).replace("$", r"\$")


def shortened(text: str, most: int = 240) -> str:
    """Returns the text as one paragraph of limited length: a compiler's message may have pages."""
    words = " ".join(text.split())
    return words if len(words) <= most else words[:most] + "…"


def plural(count: int, noun: str) -> str:
    """Writes `1 search` or `1,000 searches`."""
    ending = "" if count == 1 else "es" if noun.endswith("h") else "s"
    return f"{count:,} {noun}{ending}"
