"""Records as a table, grouped by chip."""

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
    """For `--json`: the records and, in their order, what has changed since each was made."""
    return {
        "records": [record.to_dict() for record in records],
        "drift": provenance.drifts(records),
    }


def show(records: Sequence[Record], out: Console) -> list[Record]:
    """One table per chip and mode; predicted ones apart, for they are no measurements.

    Returns those that were made with another toolchain or kernel source.
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
    """(what for, the exact command): measured ones are raced again, predicted ones searched."""
    devices = [record.device for record in drifted if record.device]
    count = text.plural(len(devices) or len(drifted), "record")
    label = f"Next: {count} from before an upgrade"
    if devices:
        return f"{label}: race them again, on {', '.join(dict.fromkeys(devices))}", "tunefa verify"
    first = drifted[0]
    line = text.command("tunefa", "search", "--arch", first.arch, "-w", str(first.workload))
    return f"{label}: search again, such as", line


def _named(record: Record, drift: Sequence[str]) -> Text:
    """The workload, the config, and what there is to know about how well it holds."""
    lines = [f"{record.kernel} {text.config_text(record.config)}"]
    if record.not_certified:
        lines.append(f"not certified: {record.not_certified}")
    if drift:
        lines.append(f"since then: {', '.join(drift)}")
    return Text.assemble(str(record.workload), *((f"\n{line}", "dim") for line in lines))
