"""`--workloads` and `--top`: workloads that `tunefa trace` found in a program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tunefa.cli import looked_up_notes
from tunefa.cli.workload_options import Selection
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import traced
from tunefa.store.traced import Traced


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command `--workloads` and `--top`."""
    for option in (
        click.option("--top", type=click.IntRange(min=1), metavar="N", help=(
            "Only the N workloads of --workloads that took the most time; `tunefa search` "
            "counts those that share a config as one.")),
        click.option("--workloads", type=click.Path(path_type=Path), metavar="FILE", help=(
            "The workloads in a file as `tunefa trace` writes it, those that took the most time "
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
    found = _heaviest(traced.read(path), selection.target, top)
    if not found:
        raise TunefaError(f"no kernel serves a workload of {path} on {selection.target}")
    for note in looked_up_notes.of_several(found):
        click.echo(note, err=True)
    return replace(selection, texts=tuple(map(str, found)))


def _heaviest(found: Traced, target: Target, top: int | None) -> dict[Workload, Sequence[Workload]]:
    """Returns the workloads that calls of a program look up, the `top` that took the most time in
    all, each with the others that are that one. What no kernel serves is named on standard error
    unless it took less than all of these."""
    members: dict[Workload, list[Workload]] = {}
    seconds = defaultdict[Workload, float](float)
    for workload in found.heaviest:
        asked = looked_up_notes.asked(workload, target)
        members.setdefault(asked, []).append(workload)
        seconds[asked] += found.workloads[workload].seconds
    kept: dict[Workload, Sequence[Workload]] = {}
    for asked in sorted(members, key=lambda each: -seconds[each]):
        if len(kept) == top:
            break
        try:
            kernels.serving(asked, target.arch)
        except TunefaError as error:
            for workload in members[asked]:
                click.echo(f"{workload}: left out, {error}", err=True)
        else:
            kept[asked] = [each for each in members[asked] if each != asked]
    return kept
