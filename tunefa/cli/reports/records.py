"""The report of records: a table for each chip."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from tunefa.cli.reports import text
from tunefa.compile import provenance
from tunefa.store.record import Record


def to_data(records: Sequence[Record]) -> dict[str, Any]:
    """Plain data for `--json`: the records, and in the same order what has changed since then."""
    return {
        "records": [record.to_dict() for record in records],
        "drift": provenance.drifts(records),
    }


def show(records: Sequence[Record], out: Console) -> list[Record]:
    """Prints a table for each chip and mode; predicted records have tables of their own.

    Returns the records that were made with other compilers or kernel sources.
    """
    drifts = dict(zip(map(id, records), provenance.drifts(records), strict=True))
    grouped = groupby(sorted(records, key=text.chip), key=text.chip)
    for position, (chip, group) in enumerate(grouped):
        if position:
            out.print()
        out.print(text.heading(chip))
        rows = text.table("workload", "us", "TFLOP/s", "date", right=("us", "TFLOP/s", "date"))
        for record in sorted(group, key=lambda each: str(each.workload)):
            rows.add_row(
                _named(record, drifts[id(record)]),
                text.number(record.median_us, 1),
                text.number(record.tflops, 1),
                str(record.provenance["date"])[:10],
            )
        out.print(rows)
    return [record for record in records if drifts[id(record)]]


def remedy(drifted: Sequence[Record]) -> tuple[str, str]:
    """Returns a label and the command that renews these records: a race, or a new search."""
    devices = [record.device for record in drifted if record.device]
    count = text.plural(len(devices) or len(drifted), "record")
    label = f"Next: renew {count} from before an upgrade"
    if devices:
        return f"{label}, on {', '.join(dict.fromkeys(devices))}", "tunefa verify"
    first = drifted[0]
    line = text.command("tunefa", "search", "--arch", first.arch, "-w", str(first.workload))
    return f"{label} by a new search, for example", line


def _named(record: Record, drift: Sequence[str]) -> Text:
    """The cell of a record: workload, config, and why it may not be the best any more."""
    lines = [f"{record.kernel} {text.config_text(record.config)}"]
    if record.not_certified:
        lines.append(f"not certified: {record.not_certified}")
    if drift:
        lines.append(f"since then: {', '.join(drift)}")
    return Text.assemble(str(record.workload), *((f"\n{line}", "dim") for line in lines))
