"""The part of `tunefa export` that is for portfolios: which journals count, and what is chosen."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from tunefa.cli.cleaned import cleaned
from tunefa.cli.reports import text
from tunefa.cli.workload_options import Selection
from tunefa.compile.serving import Installed
from tunefa.errors import TunefaError, unknown
from tunefa.spec.workload import Workload
from tunefa.store import journal, landscape, portfolio
from tunefa.store.landscape import Landscape
from tunefa.store.portfolio import Choices, Portfolio
from tunefa.store.record import Record

OPTIONS = {"journals": "--journal", "names": "--kernel", "plot": "--plot"}
"""The options that only a portfolio and formats of trials have, by click's name."""
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options for journals and portfolios."""
    for add in (
        click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                     help="With --portfolio: draw regret over the number of configs into this PNG "
                          "file; needs matplotlib."),
        click.option("--kernel", "names", multiple=True, metavar="NAME",
                     help="With --journal or --portfolio: only this kernel; may be repeated."),
        click.option("--journal", "journals", multiple=True, metavar="FILE|FOLDER",
                     type=click.Path(path_type=Path),
                     help="Journals or recorded landscapes that the trials are taken from; may be "
                          "repeated. Without it --portfolio takes all journals of this user."),
        click.option("--portfolio", "regret", metavar="PERCENT", callback=_percent,
                     help="Write the fewest configs that serve every workload of the journals at "
                          "most so much slower than its fastest config, such as 2%."),
    ):  # fmt: skip
        command = add(command)
    return command


def _percent(_ctx: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Reads a percentage. Raises TunefaError for anything else, and from 100 % on."""
    if value is None:
        return None
    found = _PERCENT.fullmatch(value)
    if found is None or float(found[1]) >= 100:
        raise TunefaError(
            f"{option.opts[0]} {value!r} must be a percentage below 100, such as 2% or 0.5%"
        )
    return float(found[1]) / 100


@dataclass(frozen=True)
class Found:
    """A portfolio, and the choices that it was taken from."""

    choices: Choices
    portfolio: Portfolio

    @cached_property
    def curve(self) -> list[Portfolio]:
        """The best portfolio of each number of configs."""
        return self.choices.curve()

    @cached_property
    def least_possible(self) -> int:
        """The bound if all that was not measured were good."""
        return self.choices.least_possible(self.portfolio.regret)

    @cached_property
    def records(self) -> list[Record]:
        """A record for each workload."""
        return self.portfolio.records()

    @cached_property
    def refused(self) -> int:
        """The number of the records that the kernels and compilers of this machine do not serve."""
        installed = Installed()
        return sum(installed.as_made(record).state == "refused" for record in self.records)


@dataclass(frozen=True)
class _Place:
    """The workload and chip of a landscape, as a `Selection` compares them."""

    workload: Workload
    arch: str
    device: str


def found(
    selection: Selection, regret: float, paths: Sequence[Path], names: Sequence[str]
) -> Found:
    """Returns the portfolio of the selected journals within a regret; 0.02 is 2 %.

    `paths` are journals, and folders of them; without any, all of this user's. Only kernels with
    these names count, if there are any. Raises TunefaError if nothing was measured, if it was
    measured on several devices, or if a kernel is unknown.
    """
    read = _read(paths)
    of_device = [each for each in read if each.measured and not each.is_replay]
    selected = [each for each in of_device if selection.selects(_place(each))]
    where = ", ".join(map(str, paths)) if paths else str(journal.folder())
    if not selected:
        raise TunefaError(
            f"none of {text.plural(len(read), 'journal')} in {where} matches and holds measured "
            "times: search on a GPU, or name journals or recorded landscapes with --journal"
        )
    known = {kernel for each in selected for kernel in each.kernels}
    for name in names:
        if name not in known:
            raise unknown("kernel in these journals", name, known)
    if names:
        selected = [each for each in selected if set(names) & set(each.kernels)]
    chips = {str(each.target) for each in selected}
    if len(chips) > 1:
        raise TunefaError(
            f"the journals hold times of {' and of '.join(sorted(chips))}, and a portfolio is for "
            "one device: name it with --device"
        )
    rows = portfolio.measured(selected, names)
    if not rows:
        raise TunefaError(f"no config in {where} has a time: every trial failed")
    choices = Choices(selected[0].target, rows)
    return Found(choices, choices.within(regret))


def _place(found: Landscape) -> _Place:
    return _Place(found.workload, found.target.arch.name, found.target.device.name)


def _read(paths: Sequence[Path]) -> list[Landscape]:
    """The landscapes in the journals that are named; those of the user that can be read, else."""
    if paths:
        from tunefa.costmodel import training_rows

        return [landscape.load(path) for path in training_rows.files(paths)]
    loaded = []
    for path in journal.paths():
        try:
            loaded.append(landscape.load(path))
        except TunefaError as error:
            click.echo(cleaned(f"Left out a journal: {error}"), err=True)
    return loaded
