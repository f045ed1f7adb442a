"""The parts that every experiment has, and the modules of this package that have them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tunefa.experiments
from tunefa.errors import unknown
from tunefa.experiments.document import Document, Row
from tunefa.experiments.table import Table
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Settings
    from tunefa.search.budget import Budget
    from tunefa.spec.trial import Mode

_ORIGIN = 100
"""The most characters of the line above a plot, which does not break lines."""


@dataclass(frozen=True)
class Experiment:
    """One question, and how it is answered.

    `measured` and `modelled` answer it for one point: they return the rows of that point, which
    are plain data for JSON. `tables` and `draw` read nothing but a document, so that they work on
    a file, without a GPU.
    """

    name: str
    """The name of the command, and of the files that it writes."""
    question: str
    """One sentence, which is the help of the command."""
    points: tuple[str, ...]
    """The workloads that are looked at if the user names none."""
    measured: Callable[[Workload, Settings], list[Row]]
    """Measures one point on this machine's GPU."""
    modelled: Callable[[Workload, Target], list[Row]]
    """Computes one point with the models of a chip, which need not be there."""
    tables: Callable[[Document], list[Table]]
    """The results as tables, with the remarks that explain them."""
    draw: Callable[[Document, Any], None]
    """Draws the results into an empty matplotlib figure."""
    op: str = "fwd"
    """The op of its points."""
    tune: Callable[[Workload, Target, Mode, Budget], str | None] | None = None
    """Searches for the config of one point before it is measured, and returns why it found none, or
    None; None where nothing is tuned."""

    def plot(self, document: Document) -> Callable[[Any], None]:
        """Returns what draws the results into an empty matplotlib figure, under a line that says
        where they come from."""

        def drawn(canvas: Any) -> None:
            self.draw(document, canvas)
            canvas.suptitle(document.origin[:_ORIGIN], fontsize=9, parse_math=False)

        return drawn


def names() -> list[str]:
    """Returns the names of all experiments, in alphabetical order."""
    return [name for name in _modules() if hasattr(_module(name), "EXPERIMENT")]


def load(name: str) -> Experiment:
    """Returns an experiment. Raises TunefaError, which lists the known ones, for other names."""
    if name not in names():
        raise unknown("experiment", name, names())
    experiment: Experiment = _module(name).EXPERIMENT
    return experiment


def _modules() -> Sequence[str]:
    return sorted(each.name for each in pkgutil.iter_modules(tunefa.experiments.__path__))


def _module(name: str) -> Any:
    return importlib.import_module(f"{tunefa.experiments.__name__}.{name}")
