"""`tunefa trace`: which attention workloads a program runs, and what tuning them would save."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from tunefa.cli.reports import text
from tunefa.cli.reports import traced as reports
from tunefa.cli.workload_options import Selection, chip_options
from tunefa.errors import TunefaError
from tunefa.store import results, traced
from tunefa.store.traced import Traced

TRACE = "TUNEFA_TRACE"
"""The variable that tunefa.integrations.autoload reads in the processes of the program."""
TOP = "10"


@click.command(context_settings={"allow_interspersed_args": False})  # the rest is the program's
@click.argument("words", metavar="[PROGRAM]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="FILE",
              help="The file to write.  [default: workloads.yaml]")  # fmt: skip
@click.option("--report", "report", type=click.Path(path_type=Path), metavar="FILE", help=(
    "Instead of running a program, say what tuning each workload of this file would save, "
    "predicted by the latency model."))  # fmt: skip
@chip_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    selection: Selection,
    words: tuple[str, ...],
    out: Path | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Run a program, and write down which attention workloads it runs, how often and for how long.

    \b
    tunefa trace -- python train.py                    writes workloads.yaml
    tunefa trace --report workloads.yaml               what tuning would save
    tunefa search --workloads workloads.yaml --top 10  tunes the heaviest

    Options come before the program: all behind its name is the program's own.

    It sees scaled_dot_product_attention, torch.nn.attention.varlen, flash-attn 2.8 and tunefa's own
    functions, in all processes that the program starts. tunefa must be installed in the program's
    Python. --arch and --device are for --report. The exit status is that of the program.

    Needs no GPU.
    """
    if report is not None:
        if words or out is not None:
            raise click.UsageError("--report runs no program: leave out the program and --out")
        reports.show(traced.read(report), selection, report, as_json)
        return
    if not words:
        raise click.UsageError("no program: give one after --, such as -- python train.py")
    path = out or Path("workloads.yaml")
    found, status = _run(words)
    if found.workloads or found.other:
        results.write_text(path, found.text())
        _say(found, path, as_json)
    elif status == 0:
        raise TunefaError(
            f"{words[0]} computed no attention that a trace sees: is tunefa installed in its "
            f"Python, and TORCH_DEVICE_BACKEND_AUTOLOAD not 0?"
        )
    sys.exit(status)


def _run(words: tuple[str, ...]) -> tuple[Traced, int]:
    """Runs a program; returns what its processes saw, and its exit status."""
    with tempfile.TemporaryDirectory(prefix="tunefa-trace-") as folder:
        try:
            done = subprocess.run(words, env={**os.environ, TRACE: folder})
        except OSError as error:
            raise TunefaError(f"cannot run {words[0]}: {error.strerror}") from error
        parts = [traced.read(path, empty=True) for path in sorted(Path(folder).glob("*.yaml"))]
    # A process that a signal ended has a negative number, as in a shell 128 more than the signal.
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return traced.merged(parts), status


def _say(found: Traced, path: Path, as_json: bool) -> None:
    if as_json:
        text.emit_json(reports.to_data(found))
        return
    out = text.console(stderr=True)
    reports.print_calls(found, out)
    if not found.workloads:
        out.print(f"\nWritten to {path}. Nothing in it is a workload of tunefa.", soft_wrap=True)
        return
    line = text.command("tunefa", "search", "--workloads", str(path), "--top", TOP)
    text.print_command(out, f"Written to {path}. Next: tune them", line)
