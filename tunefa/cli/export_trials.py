"""The part of `tunefa export` that is for formats of trials: which journal, and which kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from tunefa.errors import TunefaError, unknown
from tunefa.store import landscape
from tunefa.store.exports import TrialsFormat


def content(found: TrialsFormat, paths: Sequence[Path], names: Sequence[str]) -> tuple[str, int]:
    """Returns the text of the file, and how many trials it holds.

    `paths` must name one journal, and `names` a kernel of it if it has several. Raises
    click.UsageError if they do not, and TunefaError where the journal cannot be read.
    """
    if len(paths) != 1:
        raise click.UsageError(
            f"a {found.SUFFIXES[0]} file holds the trials of one journal or recorded landscape: "
            "name one with --journal"
        )
    if len(names) > 1:
        raise click.UsageError(f"a {found.SUFFIXES[0]} file holds one kernel: name one --kernel")
    read = landscape.load(paths[0])
    held = [name for name in read.kernels if any(read.trials(name))]
    if names and names[0] not in held:
        raise unknown("kernel in this journal", names[0], held)
    if not names and len(held) > 1:
        raise TunefaError(
            f"{paths[0]} holds trials of {', '.join(held)}, and a {found.SUFFIXES[0]} file those "
            "of one kernel: name it with --kernel"
        )
    kernel = names[0] if names else held[0]
    if not read.times_us(kernel):
        raise TunefaError(f"no config of {kernel} in {paths[0]} has a time: every trial failed")
    return found.dump_trials(read, kernel), sum(key[0] == kernel for key in read.last)
