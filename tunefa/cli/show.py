"""`tunefa show`: the records of the store."""

from __future__ import annotations

import click

from tunefa import store
from tunefa.cli.workload_options import Selection, record_options
from tunefa.reports import records as reports
from tunefa.reports import text


@click.command()
@record_options
@click.option("--all", "everything", is_flag=True, help="Not only the best of each workload.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(selection: Selection, everything: bool, as_json: bool) -> None:
    """List the best record of each workload and chip.

    Options for workload and chip narrow the list: records must have everything that is given.

    Needs no GPU.
    """
    home = store.default_store()
    known = home.records() if everything else home.best()
    records = selection.among(known)
    if as_json:
        text.emit_json({"records": [record.to_dict() for record in records]})
        return
    out = text.console()
    if records:
        reports.show(records, out)
        text.print_command(out, "Next: take them to another machine", "tunefa export best.yaml")
    else:
        out.print(f"None of {text.plural(len(known), 'record')} in the store fits.")
        line = "tunefa search --arch sm90 --seqlen 8192"
        text.print_command(out, "Next: search, such as", line)
