"""`tunefa space`: shows a kernel's search space, and how many configs its rules allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from tunefa.cli import each_workload
from tunefa.cli.reports import next_steps, text
from tunefa.cli.reports import space as reports
from tunefa.cli.workload_options import Selection, workload_options
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel


@click.command()
@workload_options
@click.option(
    "--kernel", "names", multiple=True, metavar="NAME", help="Only this kernel; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(selection: Selection, names: tuple[str, ...], as_json: bool) -> None:
    """Show a kernel's parameters, how many configs its rules allow for a workload, how many each
    rule refuses, and the default config.

    Of several workloads (-w or --model repeated, a model with several kinds of layers) each is
    shown. Needs no GPU and compiles nothing.
    """
    parts = each_workload.served(selection, names)
    documents = []
    for place, part in enumerate(parts):
        each_workload.announce(parts, place)
        found = _counted(part, names)
        spaces = [counted.to_data() for counted in found]
        arch = part.target.arch.name
        documents.append({"workload": str(part.workload), "arch": arch, "spaces": spaces})
        if not as_json:
            _show(found, part)
    if as_json:
        text.emit_json({"workloads": documents} if len(parts) > 1 else documents[0])


def _counted(selection: Selection, names: tuple[str, ...]) -> list[reports.Counted]:
    """Returns the spaces of the kernels that serve one workload."""
    workload, arch = selection.workload, selection.target.arch
    serving = kernels.serving(workload, arch, names)
    return [
        reports.Counted(kernel, workload, arch, *_count(kernel, selection)) for kernel in serving
    ]


def _show(found: Sequence[reports.Counted], selection: Selection) -> None:
    """Prints the spaces for one workload, and the next command."""
    out = text.console()
    for place, counted in enumerate(found):
        if place:
            out.print()
        reports.show(counted, out)
    first = next((each for each in found if each.feasible.configs), None)
    if first is not None:
        words = ["tunefa", "search", *selection.chip_words]
        words += ["-w", str(selection.workload), *next_steps.given("names".__eq__)]
        text.print_command(out, "Next: search it", text.command(*words))


def _count(kernel: Kernel, selection: Selection) -> tuple[Any, dict[str, Any] | None, str]:
    """Returns (the feasible configs, the default config or None, why there is no default)."""
    workload, arch = selection.workload, selection.target.arch
    feasible = kernel.space.feasible(workload, arch)
    try:
        return feasible, kernel.default(workload, arch), ""
    except TunefaError as error:
        return feasible, None, str(error)
