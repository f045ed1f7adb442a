"""Records as a table, grouped by chip."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from tunefa.record import Record
from tunefa.reports import text


def show(records: Sequence[Record], out: Console) -> None:
    """One table per chip; predicted ones apart, for they are no measurements."""
    grouped = groupby(sorted(records, key=text.chip), key=text.chip)
    for position, (chip, group) in enumerate(grouped):
        if position:
            out.print()
        out.print(text.heading(chip))
        rows = text.table("workload", "us", "TFLOP/s", "date", right=("us", "TFLOP/s", "date"))
        for record in sorted(group, key=lambda each: str(each.workload)):
            rows.add_row(
                _named(record),
                text.number(record.median_us, 1),
                text.number(record.tflops, 1),
                str(record.provenance["date"])[:10],
            )
        out.print(rows)


def _named(record: Record) -> Text:
    config = f"\n{record.kernel} {text.config_text(record.config)}"
    return Text.assemble(str(record.workload), (config, "dim"))
