"""The report of failures: how many configs failed in which way, then each failure by search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from tunefa.cli.reports import text
from tunefa.store.failures import Failure

_REASON_CHARACTERS = 160
"""A compiler's message may be pages long; `--json` has all of it."""


def to_data(failures: Sequence[Failure]) -> dict[str, Any]:
    """Plain data for `--json`, with the whole reasons."""
    return {"counts": _counts(failures), "failures": [each.to_dict() for each in failures]}


def show(failures: Sequence[Failure], out: Console) -> None:
    """Prints the counts, then the failures of each search."""
    counts = text.table("failed", "how", "kernel and most frequent reason", right=("failed",))
    for row in _counts(failures):
        why = Text.assemble(row["kernel"], (f"\n{_short(row['reason'])}", "dim"))
        counts.add_row(text.number(row["count"]), row["outcome"], why)
    out.print(counts)
    for search, group in groupby(failures, key=lambda each: each.search):
        out.print()
        out.print(text.heading(str(search.workload)))
        date = search.date[:19].replace("T", " ")
        out.print(f"{search.device} ({search.arch}), {date} UTC", style="dim")
        out.print(str(search.journal), style="dim", soft_wrap=True)  # whole, so that it is copied
        rows = text.table("how", "config and reason")
        for each in group:
            config = f"{each.kernel} {text.config_text(each.trial.config)}"
            why = Text.assemble((config, "dim"), f"\n{_short(each.trial.reason)}")
            rows.add_row(each.trial.outcome, why)
        out.print(rows)


def _counts(failures: Sequence[Failure]) -> list[dict[str, Any]]:
    """Counts failures by kernel and outcome, with the most frequent reason; most first."""
    groups = Counter((each.kernel, each.trial.outcome) for each in failures)
    rows = []
    for (kernel, outcome), count in groups.most_common():
        reasons = Counter(
            each.trial.reason
            for each in failures
            if (each.kernel, each.trial.outcome) == (kernel, outcome)
        )
        reason = reasons.most_common(1)[0][0]
        rows.append({"kernel": kernel, "outcome": outcome, "count": count, "reason": reason})
    return rows


def _short(reason: str) -> str:
    """The reason as one paragraph of limited length."""
    words = " ".join(reason.split()) or "no reason was given"
    return words if len(words) <= _REASON_CHARACTERS else words[:_REASON_CHARACTERS] + "..."
