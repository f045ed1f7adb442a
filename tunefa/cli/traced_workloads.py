"""`--workloads` and `--top`: workloads that `tunefa trace` found in a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tunefa.cli.workload_options import Selection
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
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
    named on standard error.

    Raises TunefaError for a file that cannot be read or has no workload that a kernel serves, and
    click.UsageError for options that do not go together.
    """
    if path is None:
        if top is not None:
            raise click.UsageError("--top is for --workloads: give a file that tunefa trace wrote")
        return selection
    if selection.texts or selection.fields or selection.models:
        raise click.UsageError("--workloads names the workloads: leave out the others")
    texts: list[str] = []
    for workload in traced.read(path).heaviest:
        if top is not None and len(texts) == top:
            break
        try:
            kernels.serving(workload, selection.target.arch)
        except TunefaError as error:
            click.echo(f"{workload}: left out, {error}", err=True)
        else:
            texts.append(str(workload))
    if not texts:
        raise TunefaError(f"no kernel serves a workload of {path} on {selection.target}")
    return replace(selection, texts=tuple(texts))
