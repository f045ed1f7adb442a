"""The report of `tunefa rm` and `tunefa prune`: the records that are removed, and the question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from tunefa.cli.reports import text
from tunefa.store import removal
from tunefa.store.removal import Stored


def to_data(chosen: Sequence[Stored], removed: bool) -> dict[str, Any]:
    """Plain data for `--json`."""
    rows = [
        {"file": str(each.path), "why": each.why, "record": each.record.to_dict()}
        for each in chosen
    ]
    return {"removed": removed, "records": rows}


def show(chosen: Sequence[Stored], out: Console) -> None:
    """Prints a table of the records, with their chips and files."""
    rows = text.table("record", "us", "date", right=("us", "date"))
    for each in chosen:
        record = each.record
        lines = [text.chip(record), f"{record.kernel} {text.config_text(record.config)}"]
        lines += [each.why] if each.why else []
        named = Text.assemble(str(record.workload), *((f"\n{line}", "dim") for line in lines))
        date = str(record.provenance["date"])[:10]
        rows.add_row(named, text.number(record.median_us, 1), date)
    out.print(rows)
    for path in dict.fromkeys(each.path for each in chosen):
        out.print(str(path), style="dim", soft_wrap=True)


def settle(chosen: Sequence[Stored], *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Shows the records and removes them, after a question unless `yes`; `dry_run` removes none.

    Raises click.UsageError for JSON that would need the question.
    """
    if as_json and not (yes or dry_run):
        raise click.UsageError("--json asks no question: add --yes, or --dry-run")
    out, count = text.console(), text.plural(len(chosen), "record")
    if not as_json:
        show(chosen, out)
    if not dry_run and not yes:
        click.confirm(f"Remove {count}?", abort=True, err=True)
    if not dry_run:
        removal.remove(chosen)
    if as_json:
        text.emit_json(to_data(chosen, removed=not dry_run))
    else:
        out.print()
        out.print(f"Would remove {count}." if dry_run else f"Removed {count}.")
