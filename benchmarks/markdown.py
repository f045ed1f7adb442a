"""Tables in Markdown, and pages in docs/ with parts that a program writes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tunefa.spec.workload import Workload


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head. The first column is aligned left, the others right."""
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    lines = [rows[0], rule, *rows[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(page: str, name: str, text: str) -> str:
    """Returns the page with `text` between its marks `<!-- name -->` and `<!-- end of name -->`.

    Raises ValueError if the page does not have both.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    if begin not in page or end not in page:
        raise ValueError(f"the page has no marks {begin.strip()} and {end}")
    marked = re.compile(f"(?<={begin}).*?(?={end})", re.DOTALL)
    return marked.sub(lambda _: f"\n{text}\n", page)


def short(workload: Workload) -> str:
    """The parts of a workload that differ within a table."""
    heads = f"h{workload.heads}"
    heads += f"/{workload.heads_kv}" if workload.group > 1 else ""
    lengths = f"s{workload.seqlen_q}"
    if workload.seqlen_q != workload.seqlen_k:
        lengths = f"q{workload.seqlen_q} k{workload.seqlen_k}"
    _, _, tail = str(workload).partition(f"_k{workload.seqlen_k}_")
    return f"b{workload.batch} {heads} {lengths} {tail.replace('_bf16', '').replace('_', ' ')}"
