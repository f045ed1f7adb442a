"""Several workloads of one command, one after the other: which of them it can work on."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tunefa.cli.workload_options import Selection
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload


def served(selection: Selection, names: Sequence[str]) -> list[Selection]:
    """Returns the workloads of a selection that a kernel serves, one after the other.

    Layers of a model that no kernel serves on the chip are named on standard error, if others
    remain. Raises TunefaError for a workload from `-w` that no kernel serves, and what
    `Selection.each` raises.
    """
    parts = selection.each()
    served: list[Selection] = []
    refused: list[str] = []
    arch = selection.target.arch
    for part in parts:
        try:
            kernels.serving(part.workload, arch, of_its_op(names, part.workload))
        except TunefaError as error:
            if part.layers is None or len(parts) == 1:
                raise
            refused.append(f"{part.layers}: left out, {error}")
        else:
            served.append(part)
    if not served:
        raise TunefaError("; ".join(refused))
    for line in refused:
        click.echo(line, err=True)
    return served


def of_its_op(names: Sequence[str], workload: Workload) -> tuple[str, ...]:
    """Returns the kernels among `names` that compute a workload's op, as kernels of several ops may
    be named; all of them if none does, so that an error names them.

    Raises TunefaError for an unknown kernel.
    """
    own = tuple(name for name in names if kernels.load(name).op == workload.op)
    return own or tuple(names)


def announce(parts: Sequence[Selection], place: int) -> None:
    """Says on standard error which of several workloads comes next, and whose layers have it."""
    part = parts[place]
    if part.layers is None and len(parts) == 1:
        return
    number = f"[{place + 1}/{len(parts)}] " if len(parts) > 1 else ""
    layers = f"{part.layers}: " if part.layers is not None else ""
    gap = "\n" if place else ""
    click.echo(f"{gap}{number}{layers}{part.workload}", err=True)
