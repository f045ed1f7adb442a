"""`--workloads` and `--top`: workloads that `tunefa trace` found in a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tunefa.cli import looked_up_notes
from tunefa.cli.workload_options import Selection
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload
from tunefa.store import traced


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command `--workloads` and `--top`."""
    for option in (
        click.option("--top", type=click.IntRange(min=1), metavar="N", help=(
            "Only the N workloads of --workloads that took the most time.")),
        click.option("--workloads", type=click.Path(path_type=Path), metavar="FILE", help=(
            "The workloads in a file that `tunefa trace` wrote, those that took the most time "
            "first.")),
    ):  # fmt: skip
        command = option(command)
    return command


def selected(selection: Selection, path: Path | None, top: int | None) -> Selection:
    """Returns a selection with the workloads of a file that a kernel serves on its chip; others are
    named on standard error. Those that calls look up as another one are that one.

    Raises TunefaError for a file that cannot be read or has no workload that a kernel serves, and
    click.UsageError for options that do not go together.
    """
    if path is None:
        if top is not None:
            raise click.UsageError("--top is for --workloads: give a file that tunefa trace wrote")
        return selection
    if selection.texts or selection.fields or selection.models:
        raise click.UsageError("--workloads names the workloads: leave out the others")
    found: dict[Workload, list[Workload]] = {}
    for workload in traced.read(path).heaviest:
        asked = looked_up_notes.asked(workload, selection.target)
        if top is not None and len(found) == top and asked not in found:
            continue
        try:
            kernels.serving(asked, selection.target.arch)
        except TunefaError as error:
            click.echo(f"{workload}: left out, {error}", err=True)
        else:
            found.setdefault(asked, []).extend([] if asked == workload else [workload])
    if not found:
        raise TunefaError(f"no kernel serves a workload of {path} on {selection.target}")
    for note in looked_up_notes.of_several(found):
        click.echo(note, err=True)
    return replace(selection, texts=tuple(map(str, found)))
