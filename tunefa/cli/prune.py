"""`tunefa prune`: removes the records that nothing uses any more from this machine's store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from tunefa.cli.reports import removal as reports
from tunefa.cli.reports import text
from tunefa.compile.serving import Installed
from tunefa.spec.workload import Workload
from tunefa.store import results as store
from tunefa.store.record import Record
from tunefa.store.removal import Stored


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--yes", is_flag=True, help="Remove without a question.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove the records that nothing uses any more from this machine's store.

    These are copies of a record; records that a newer one of the same kernel, workload and chip
    supersedes; predicted records where a measured one serves the same workload on the chip family;
    and records that cannot serve: their kernel has another source by now or is not installed, or
    its space refuses their config. They are shown first, each with the reason. The records that
    tunefa ships are never removed.

    Needs no GPU.
    """
    chosen = list(_unused())
    if chosen:
        reports.settle(chosen, dry_run=dry_run, yes=yes, as_json=as_json)
    elif as_json:
        text.emit_json(reports.to_data([], removed=False))
    else:
        text.console().print("Nothing to prune: every record may still be used.")


def _unused() -> Iterator[Stored]:
    """Yields the user's records that no lookup can choose, each with the reason."""
    home, installed = store.default_store(), Installed()
    every = home.records()
    served = [each for each in every if installed.serving(each).state != "refused"]
    standing = store.current(served)
    measured = {(each.arch, each.workload): each for each in standing if each.device is not None}
    seen: dict[tuple[object, ...], Path] = {}
    for path, record in home.own():
        first = seen.setdefault(record.origin, path)
        if first != path:
            yield Stored(path, record, f"a copy of the record in {first}")
        elif record.functions:  # FlexAttention looks it up, see tunefa.integrations.flex
            continue
        elif why := _why_unused(record, installed, standing, measured):
            yield Stored(path, record, why)


def _why_unused(
    record: Record,
    installed: Installed,
    standing: list[Record],
    measured: dict[tuple[str, Workload], Record],
) -> str:
    """The reason why no lookup can choose the record, in words; empty if one can."""
    made = installed.serving(record)
    if made.state == "refused":
        return f"it was {made.why}"
    if all(each.origin != record.origin for each in standing):
        return "a newer record supersedes it"
    if record.device is None and (better := measured.get((record.arch, record.workload))):
        return f"it was predicted, and {better.device} was measured"
    return ""
