"""The report of records: a table for each chip."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from tunefa.cli.reports import compared, text
from tunefa.compile import provenance
from tunefa.compile.serving import Installed
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.store import prediction
from tunefa.store.prediction import Interval
from tunefa.store.record import Record


def to_data(records: Sequence[Record]) -> dict[str, Any]:
    """Plain data for `--json`: the records, and in the same order the intervals of predicted times,
    whether each record serves with what is installed, why it is not confirmed, and what has changed
    since it was made."""
    serving = [installed.serving(record) for installed in [Installed()] for record in records]
    intervals = [Interval.of(record) for record in records]
    return {
        "records": [record.to_dict() for record in records],
        "intervals_us": [interval.to_data() if interval else None for interval in intervals],
        "serves": [found.state for found in serving],
        "why": [found.why for found in serving],
        "drift": provenance.drifts(records),
    }


def show(records: Sequence[Record], out: Console) -> list[Record]:
    """Prints a table for each chip and mode; predicted records have tables of their own.

    Returns the records that are not confirmed, or were measured with another driver.
    """
    notes = _notes(records)
    grouped = groupby(sorted(records, key=text.chip), key=text.chip)
    for position, (chip, group) in enumerate(grouped):
        if position:
            out.print()
        out.print(text.heading(chip))
        ordered = sorted(group, key=lambda each: str(each.workload))
        figures = [_figures(each) for each in ordered]
        heads = list(dict.fromkeys(head for each in figures for head in each))
        rows = text.table("workload", *heads, right=tuple(heads))
        for record, own in zip(ordered, figures, strict=True):
            cells = (own.get(head, text.NO_VALUE) for head in heads)
            rows.add_row(_named(record, notes[id(record)]), *cells)
        longest = max(len(str(each.workload)) for each in ordered)
        beside = sum(2 + max(len(each.get(head, "")) for each in figures) for head in heads)
        if longest + beside <= out.width:
            out.print(rows)
        else:
            for record in ordered:
                _show_stacked(record, notes[id(record)], out)
        if ordered[0].device is None:
            out.print()
            out.print(_compared(ordered[0]))
    return [record for record in records if notes[id(record)]]


def _compared(record: Record) -> str:
    """The sentence about the model's predictions for a record's arch, which may be an old one."""
    with contextlib.suppress(TunefaError):
        return compared.sentence(archs.load(record.arch), record.workload.op)
    return prediction.compared(record.arch, ())


def _figures(record: Record) -> dict[str, str]:
    """The figures of a record, by the heads of their columns."""
    interval = Interval.of(record)
    unit, rate = text.rate_of(record)
    return {
        "us": text.number(record.median_us, 1),
        **({text.INTERVAL: str(interval)} if interval else {}),
        unit: rate,
        "date": str(record.provenance["date"])[:10],
    }


def _notes(records: Sequence[Record]) -> dict[int, str]:
    """The remark on each record, by its id: that it is unconfirmed or does not serve, and
    why; or which driver it was measured with, if this machine has another."""
    installed, notes = Installed(), {}
    words = {"unconfirmed": "unconfirmed", "refused": "does not serve"}
    for record, drift in zip(records, provenance.drifts(records), strict=True):
        found = installed.serving(record)
        since = f"since then: {', '.join(drift)}" if drift else ""
        notes[id(record)] = f"{words[found.state]}: {found.why}" if found.why else since
    return notes


def reasons(records: Sequence[Record], installed: Installed) -> list[str]:
    """Returns why records are not confirmed, with how many, such as `35 measured with ...`."""
    counts = Counter(installed.serving(record).why for record in records)
    return [f"{count:,} {why}" for why, count in counts.items()]


def remedy(drifted: Sequence[Record]) -> tuple[str, str]:
    """Returns a label and the command that confirms these records: a race, or a new search."""
    devices = [record.device for record in drifted if record.device]
    label = f"Next: confirm {text.plural(len(devices) or len(drifted), 'record')}"
    if devices:
        return f"{label}, on {', '.join(dict.fromkeys(devices))}", text.command("tunefa", "verify")
    first = drifted[0]
    line = text.command("tunefa", "search", "--arch", first.arch, "-w", str(first.workload))
    return f"{label} by a new search, for example", line


def _show_stacked(record: Record, note: str, out: Console) -> None:
    """Prints a record in a narrow terminal: its workload, then its figures, config and the rest."""
    workload, _, rest = _named(record, note).plain.partition("\n")
    out.print()
    out.print(workload, soft_wrap=True)  # on one line, so that it can be copied
    figures = _figures(record)
    interval = text.interval(Interval.of(record), ", ")
    unit, rate = text.rate_of(record)
    out.print(f"{figures['us']} us{interval}, {rate} {unit}, {figures['date']}")
    out.print(rest, style="dim", overflow="fold")


def _named(record: Record, note: str) -> Text:
    """The cell of a record: workload, config, and why it may not be the best any more."""
    lines = [f"{record.kernel} {text.config_text(record.config)}"]
    if record.not_certified:
        lines.append(f"not certified: {record.not_certified}")
    if decision := prediction.decision(record):
        lines.append(f"recommended: {decision}")
    if note:
        lines.append(note)
    return Text.assemble(str(record.workload), *((f"\n{line}", "dim") for line in lines))
