"""`tunefa show`: lists the records of the store, or the configs that failed in searches."""

from __future__ import annotations

from typing import Any

import click

from tunefa.cli.reports import failures as failure_reports
from tunefa.cli.reports import records as reports
from tunefa.cli.reports import text
from tunefa.cli.workload_options import Selection, record_options
from tunefa.compile import serving
from tunefa.compile.serving import Installed
from tunefa.errors import unknown
from tunefa.spec import kernel as kernels
from tunefa.store import failures as failures_in_journals
from tunefa.store import results as store


@click.command()
@record_options
@click.option(
    "--kernel", "names", multiple=True, metavar="NAME", help="Only this kernel; may be repeated."
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="All records, not only the best of each workload and chip.",
)
@click.option("--failures", "failed", is_flag=True,
              help="Instead of records, the configs that failed in searches, and why.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(selection: Selection, failed: bool, everything: bool, **how: Any) -> None:
    """List the best record of each workload and chip.

    Options for workload and chip select records: a record must match all of them. Under a record
    stands why it is unconfirmed (another Triton or NVRTC is installed) or does not serve (the
    kernel's source changed, say), or that the driver changed.

    With --failures, it lists every config that failed in this machine's searches, the newest search
    first; --last lists only the newest search.

    Needs no GPU.
    """
    if failed and everything:
        raise click.UsageError("--all is for records: leave out --all or --failures")
    if failed:
        _failures(selection, **how)
    else:
        _records(selection, everything, **how)


def _records(selection: Selection, everything: bool, names: tuple[str, ...], as_json: bool) -> None:
    home = store.default_store()
    known = home.records() if everything else serving.best(home, Installed())
    _check(names, {record.kernel for record in known})
    records = selection.among([record for record in known if not names or record.kernel in names])
    if as_json:
        text.emit_json(reports.to_data(records))
        return
    out = text.console()
    if records:
        drifted = reports.show(records, out)
        label, line = "Next: export them for another machine", "tunefa export best.yaml"
        if drifted:
            label, line = reports.remedy(drifted)
        text.print_command(out, label, line)
    else:
        out.print(f"None of {text.plural(len(known), 'record')} in the store matches.")
        line = "tunefa search --arch sm90 --seqlen 8192"
        text.print_command(out, "Next: search, for example", line)


def _failures(selection: Selection, names: tuple[str, ...], as_json: bool) -> None:
    known = failures_in_journals.failures()
    _check(names, {failure.kernel for failure in known})
    chosen = [each for each in known if not names or each.kernel in names]
    chosen = [each for each in chosen if selection.selects(each)]
    if selection.last:
        chosen = [each for each in chosen if each.search == chosen[0].search]
    if as_json:
        text.emit_json(failure_reports.to_data(chosen))
        return
    out = text.console()
    if not chosen:
        out.print(f"None of {text.plural(len(known), 'failure')} in the journals matches.")
        return
    failure_reports.show(chosen, out)
    first = chosen[0]
    config = text.config_text(first.trial.config, ",")
    words = ["--arch", first.arch, "-w", str(first.workload), "--kernel", first.kernel]
    line = text.command("tunefa", "explain", *words, "-c", config)
    text.print_command(out, "Next: see what limits the first config", line)


def _check(names: tuple[str, ...], seen: set[str]) -> None:
    """Raises TunefaError for a kernel that is neither installed nor in the list."""
    known = sorted({*kernels.names(), *seen})
    for name in names:
        if name not in known:
            raise unknown("kernel", name, known)
