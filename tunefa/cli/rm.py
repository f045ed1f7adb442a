"""`tunefa rm`: removes records from this machine's store."""

from __future__ import annotations

import click

from tunefa.cli.reports import removal as reports
from tunefa.cli.reports import text
from tunefa.cli.workload_options import Selection, record_options
from tunefa.errors import TunefaError
from tunefa.store import results as store
from tunefa.store.removal import Stored


@click.command()
@record_options
@click.option(
    "--kernel", "names", multiple=True, metavar="NAME", help="Only this kernel; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--yes", is_flag=True, help="Remove without a question.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    selection: Selection, names: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Remove records from this machine's store.

    Options for workload, chip and kernel select records: a record must match all of them, and at
    least one must be given. All records that match are removed, not only the best of each workload.
    They are shown first. The records that tunefa ships are never removed.

    Needs no GPU.
    """
    if not names and selection == Selection():
        raise click.UsageError(
            "name the records to remove, such as -w WORKLOAD, --arch, --device, --kernel or --last"
        )
    known = store.default_store().own()
    of_kernel = [record for _, record in known if not names or record.kernel in names]
    wanted = selection.among(of_kernel)
    chosen = [Stored(path, record) for path, record in known if record in wanted]
    if not chosen:
        raise TunefaError(
            f"none of {text.plural(len(known), 'record')} in {store.user_root()} matches: list all "
            "with 'tunefa show --all'; those that tunefa ships cannot be removed"
        )
    reports.settle(chosen, dry_run=dry_run, yes=yes, as_json=as_json)
