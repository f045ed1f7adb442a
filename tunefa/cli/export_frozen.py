"""The part of `tunefa export` that is for lock files: which records serve, and what is said of the
others."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from tunefa.cli.cleaned import cleaned
from tunefa.cli.exit_codes import NOTHING_VALID
from tunefa.cli.reports import text
from tunefa.cli.reports.records import reasons
from tunefa.compile.serving import Installed
from tunefa.runtime.lock_file import MARK, Locked, records_to_lock
from tunefa.store.record import Record


def locked(records: Sequence[Record], unconfirmed: bool) -> Sequence[Record]:
    """The records for a lock file. Says in one line, on standard error, which are left out.

    Ends the process with exit status 3 if none is left.
    """
    installed = Installed()
    found = records_to_lock(records, installed, unconfirmed)
    if found.left_out:
        click.echo(cleaned(_left_out(found, installed)), err=True)
    if not found.records:
        sys.exit(NOTHING_VALID)
    return found.records


def marked(records: Sequence[Record]) -> str:
    """The words for how many of these records are marked as unconfirmed; empty for none."""
    count = sum(bool(record.provenance.get(MARK)) for record in records)
    return f", {count} of them unconfirmed" if count else ""


def _left_out(found: Locked, installed: Installed) -> str:
    """The line that says how many records are left out, why, and what to do."""
    count = text.plural(len(found.left_out) + len(found.records), "record")
    what = f"Warning: left out {len(found.left_out)} of {count}"
    if not found.records:
        what = f"Nothing was written, as none of {count} serves"
    states = {installed.serving(record).state for record in found.left_out}
    devices = ", ".join(dict.fromkeys(str(record.device) for record in found.left_out))
    also = ", or add --unconfirmed" if "unconfirmed" in states else ""
    why = "; ".join(reasons(found.left_out, installed))
    return f"{what} ({why}): run 'tunefa verify' on {devices}{also}"
