"""The section of failures: how many configs failed, kernel by kernel and reason by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tunefa.experiments.table import Table, number
from tunefa.report.content import Content, FailureCount
from tunefa.report.part import Part, Section, plural

HEAD = ("how", "reason", "configs")
MOST_REASONS = 12
"""The reasons of a kernel that have a row of their own."""


def section(content: Content) -> Section:
    """Returns a table for each kernel, the one with the most failures first."""
    totals: Counter[str] = Counter()
    for each in content.failures:
        totals[each.kernel] += each.count
    return Section(
        name="failures",
        title="Failures",
        about="The configs that failed in all searches, by how and why. `refused`: a rule of the "
        "space forbids the config. `compile_failed`, `timeout` and `crashed`: the compiler or the "
        "launch failed. `wrong`: the output is not that of the reference. `unstable`: the output "
        "changes from launch to launch.",
        parts=[
            Part(
                kernel,
                [_table([each for each in content.failures if each.kernel == kernel])],
            )
            for kernel, _ in totals.most_common()
        ],
        empty="No config failed in the searches whose journals are here."
        if content.searches
        else "There are no journals of searches to show, which would say what failed.",
    )


def _table(failures: Sequence[FailureCount]) -> Table:
    counts: Counter[tuple[str, str]] = Counter()
    for each in failures:
        counts[each.outcome, each.reason or "no reason was given"] += each.count
    rows = [[*key, number(count)] for key, count in counts.most_common(MOST_REASONS)]
    if rest := counts.most_common()[MOST_REASONS:]:
        others = plural(len(rest), "other reason")
        rows.append(["", others, number(sum(count for _, count in rest))])
    total = plural(sum(counts.values()), "config")
    return Table(f"{total} failed", HEAD, rows, words=frozenset({"how", "reason"}))
