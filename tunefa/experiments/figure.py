"""Plots: matplotlib figures, written as PNG, or as SVG that takes its colours from a page.

Plots are drawn with a few named colours, which can be told apart with any colour vision and in grey
(Okabe and Ito, "Color Universal Design", 2008). matplotlib comes with the extra `report`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunefa.errors import TunefaError

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""The colours of lines and bars, in the order of their use."""
OURS, THEORY = COLOURS[0], "#8a8f98"
"""The colour of tunefa's own figures, and that of theory and ceilings."""
_INK, _PAPER, _GRID = "#16191d", "#fdfefe", "#dfe3e8"
_VARIABLES = {_INK: "var(--ink)", _PAPER: "var(--paper)", _GRID: "var(--grid)"}
"""The CSS variables that replace the colours of text, background and grid in a page."""
_STYLE: Any = {
    "axes.edgecolor": _INK,
    "axes.facecolor": _PAPER,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": _INK,
    "axes.titlesize": 11,
    "figure.facecolor": _PAPER,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": _GRID,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "savefig.facecolor": _PAPER,
    "svg.fonttype": "path",
    "svg.hashsalt": "tunefa",
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}
Draw = Callable[[Any], None]
"""Draws into an empty matplotlib figure."""


def save_png(draw: Draw, path: Path, size: tuple[float, float] = (9.0, 4.8)) -> None:
    """Writes a plot as PNG; `size` is in inches of 120 pixels.

    Raises TunefaError where matplotlib is missing or the file cannot be written.
    """
    try:
        _rendered(draw, size, path, format="png", dpi=120)
    except OSError as error:
        raise TunefaError(f"cannot write {path}: {error.strerror or error}") from error


def svg(draw: Draw, size: tuple[float, float] = (9.0, 4.8)) -> str:
    """Returns a plot as an SVG element for a page, whose CSS defines --ink, --paper and --grid.

    The same figures give the same text. Raises TunefaError where matplotlib is missing.
    """
    buffer = io.StringIO()
    _rendered(draw, size, buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    # A page scales the plot to its own width.
    return re.sub(r'(<svg [^>]*?)width="[^"]+" height="[^"]+"|(<svg )', _unsized, text, count=1)


def _unsized(found: re.Match[str]) -> str:
    return re.sub(r'(?:width|height)="[^"]*pt"\s*', "", found[0])


def _rendered(draw: Draw, size: tuple[float, float], target: Any, **options: Any) -> None:
    """Draws a figure and writes it to `target`, a path or a buffer."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TunefaError(
            "plots need matplotlib: pip install 'matplotlib>=3.8', or leave the plot out"
        ) from error
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(target, **options)
