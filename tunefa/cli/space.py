"""`tunefa space`: shows a kernel's search space, and how many configs its rules allow."""

from __future__ import annotations

from typing import Any

import click

from tunefa.cli.reports import space as reports
from tunefa.cli.reports import text
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

    Needs no GPU and compiles nothing.
    """
    workload, arch = selection.workload, selection.target.arch
    serving = kernels.serving(workload, arch, names)
    found = [
        reports.Counted(kernel, workload, arch, *_count(kernel, selection)) for kernel in serving
    ]
    if as_json:
        spaces = [counted.to_data() for counted in found]
        text.emit_json({"workload": str(workload), "arch": arch.name, "spaces": spaces})
        return
    out = text.console()
    for place, counted in enumerate(found):
        if place:
            out.print()
        reports.show(counted, out)
    first = next((each for each in found if each.feasible.configs), None)
    if first is not None:
        words = ("tunefa", "search", *selection.chip_words, "-w", str(workload))
        text.print_command(out, "Next: search it", text.command(*words))


def _count(kernel: Kernel, selection: Selection) -> tuple[Any, dict[str, Any] | None, str]:
    """Returns (the feasible configs, the default config or None, why there is no default)."""
    workload, arch = selection.workload, selection.target.arch
    feasible = kernel.space.feasible(workload, arch)
    try:
        return feasible, kernel.default(workload, arch), ""
    except TunefaError as error:
        return feasible, None, str(error)
