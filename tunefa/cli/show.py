"""`tunefa show`: the records of the store, and the configs that died on the way to them."""

from __future__ import annotations

from typing import Any

import click

from tunefa.cli.reports import failures as ledgers
from tunefa.cli.reports import records as reports
from tunefa.cli.reports import text
from tunefa.cli.workload_options import Selection, record_options
from tunefa.errors import unknown
from tunefa.spec import kernel as kernels
from tunefa.store import failures as ledger
from tunefa.store import results as store


@click.command()
@record_options
@click.option("--kernel", "names", multiple=True, metavar="NAME", help="Only this one; repeatable.")
@click.option("--all", "everything", is_flag=True, help="Not only the best of each workload.")
@click.option("--failures", "failed", is_flag=True,
              help="The configs that died in searches, and why, in place of records.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(selection: Selection, failed: bool, everything: bool, **how: Any) -> None:
    """List the best record of each workload and chip.

    Options for workload and chip narrow the list: records must have everything that is given. What
    has changed since a record was made (Triton, the driver, the kernel's source) stands under it.

    With --failures: every config that did not end well, by the journals of this machine's searches,
    the newest search first; --last keeps to that one.

    Needs no GPU.
    """
    if failed and everything:
        raise click.UsageError("--all is about records: leave it out, or --failures")
    if failed:
        _failures(selection, **how)
    else:
        _records(selection, everything, **how)


def _records(selection: Selection, everything: bool, names: tuple[str, ...], as_json: bool) -> None:
    home = store.default_store()
    known = home.records() if everything else home.best()
    _check(names, {record.kernel for record in known})
    records = selection.among([record for record in known if not names or record.kernel in names])
    if as_json:
        text.emit_json(reports.to_data(records))
        return
    out = text.console()
    if records:
        drifted = reports.show(records, out)
        label, line = "Next: take them to another machine", "tunefa export best.yaml"
        if drifted:
            label, line = reports.remedy(drifted)
        text.print_command(out, label, line)
    else:
        out.print(f"None of {text.plural(len(known), 'record')} in the store fits.")
        line = "tunefa search --arch sm90 --seqlen 8192"
        text.print_command(out, "Next: search, such as", line)


def _failures(selection: Selection, names: tuple[str, ...], as_json: bool) -> None:
    known = ledger.failures()
    _check(names, {failure.kernel for failure in known})
    chosen = [each for each in known if not names or each.kernel in names]
    chosen = [each for each in chosen if selection.chooses(each)]
    if selection.last:
        chosen = [each for each in chosen if each.search == chosen[0].search]
    if as_json:
        text.emit_json(ledgers.to_data(chosen))
        return
    out = text.console()
    if not chosen:
        out.print(f"None of {text.plural(len(known), 'failure')} in the journals fits.")
        return
    ledgers.show(chosen, out)
    first = chosen[0]
    config = text.config_text(first.trial.config, ",")
    words = ["--arch", first.arch, "-w", str(first.workload), "--kernel", first.kernel]
    line = text.command("tunefa", "explain", *words, "-c", config)
    text.print_command(out, "Next: see what limits the first config", line)


def _check(names: tuple[str, ...], seen: set[str]) -> None:
    """Raises TunefaError for a kernel that is neither here nor in what is listed."""
    known = sorted({*kernels.names(), *seen})
    for name in names:
        if name not in known:
            raise unknown("kernel", name, known)
