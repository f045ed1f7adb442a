"""The row of a measured workload, its line of JSON, and the Markdown tables of rows.

python -m benchmarks.forward.rows forward.jsonl    # the tables of docs/benchmarks.md
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import markdown
from benchmarks.forward.workloads import TITLES
from tunefa.experiments.compare import OURS
from tunefa.measure import peers
from tunefa.measure.contest import Contest
from tunefa.spec.workload import Workload

_PEERS = sorted(map(peers.load, peers.names()), key=lambda peer: peer.package != "torch")
NAMES = {OURS: OURS, **{peer.name: peer.title for peer in _PEERS}}
"""The names of contestants in tables, in the order of the columns."""


@dataclass(frozen=True)
class Row:
    """The results of all contestants on one workload."""

    group: str
    """One of `workloads.TITLES`."""
    workload: Workload
    tflops: dict[str, float]
    """TFLOP/s by contestant."""
    left_out: dict[str, str]
    """The reasons that the other contestants are left out."""
    chosen: dict[str, Any]
    """The kernel and the config that tunefa ran, and why."""
    device: dict[str, Any]
    """The device's state meanwhile: `Monitor.summary`."""
    made_with: dict[str, str]
    """The device and versions."""

    @classmethod
    def of(
        cls,
        group: str,
        found: Mapping[str, Any],
        absent: Mapping[str, str],
        made_with: dict[str, str],
    ) -> Row:
        """The row of a comparison, `Comparisons.row`; `absent` says why peers were not asked."""
        contest = Contest.from_data(found)
        workload = contest.workload
        tflops = {name: score.tflops(workload) for name, score in contest.scores.items()}
        left_out = {**contest.left_out, **absent}
        chosen = dict(found["ran"] or {})
        return cls(group, workload, tflops, left_out, chosen, dict(contest.device), made_with)

    @property
    def best_peer(self) -> str | None:
        """The fastest peer; None if no peer runs."""
        peers = {name: rate for name, rate in self.tflops.items() if name != OURS}
        return max(peers, key=lambda name: peers[name], default=None)

    @property
    def ratio(self) -> float | None:
        """tunefa's speed divided by that of the best peer; None if one of the two is missing."""
        if OURS not in self.tflops or self.best_peer is None:
            return None
        return self.tflops[OURS] / self.tflops[self.best_peer]

    def line(self) -> str:
        """One line of JSON, which `parse` reads."""
        return json.dumps({**asdict(self), "workload": str(self.workload)})

    @classmethod
    def parse(cls, line: str) -> Row:
        """Reads the row that `line` wrote."""
        row = cls(**json.loads(line))
        return replace(row, workload=Workload.parse(str(row.workload)))


def tables(rows: Sequence[Row]) -> str:
    """Markdown: a table for each group, the contestants that are left out and why, and the
    versions.

    Of a workload that was measured several times, the last row counts.
    """
    last = {(row.group, row.workload): row for row in rows}
    groups = {name: [r for r in last.values() if r.group == name] for name in TITLES}
    parts = [_section(TITLES[name], found) for name, found in groups.items() if found]
    versions = {json.dumps(row.made_with): row.made_with for row in last.values()}
    parts += [", ".join(f"{k} {v}" for k, v in each.items()) + "." for each in versions.values()]
    return "\n\n".join(parts) + "\n"


def _section(title: str, rows: Sequence[Row]) -> str:
    names = [name for name in NAMES if any(name in row.tflops for row in rows)]
    head = ["workload", *(NAMES[name] for name in names), "over the best peer", "MHz", "W"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *(_cells(row, names) for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([f"### {title}", table, *_remarks(rows)])


def _cells(row: Row, names: Sequence[str]) -> list[str]:
    best = max(row.tflops.values(), default=0.0)
    rates = [_rate(row.tflops.get(name), best) for name in names]
    ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
    mhz, watts = (_span(row.device.get(key)) for key in ("sm_mhz", "power_w"))
    return [markdown.short(row.workload), *rates, ratio, mhz, watts]


def _rate(tflops: float | None, best: float) -> str:
    if tflops is None:
        return ""
    return f"**{tflops:.0f}**" if tflops == best else f"{tflops:.0f}"


def _span(readings: Sequence[int] | None) -> str:
    """The lowest and the highest reading; one number if they are equal."""
    return "–".join(map(str, dict.fromkeys(readings or ())))


def _remarks(rows: Sequence[Row]) -> Iterable[str]:
    """Yields the summary, then which rows were disturbed and which contestants are left out."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        faster = sum(ratio > 1.0 for ratio in ratios)
        span = f"{min(ratios):.3f} to {max(ratios):.3f}"
        yield f"Ahead at {faster} of {len(ratios)}, geometric mean {mean:.3f} ({span})."
    missing: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, why in row.left_out.items():
            missing.setdefault((name, why), []).append(markdown.short(row.workload))
        if row.device.get("disturbance"):
            yield f"Disturbed: {markdown.short(row.workload)}, {row.device['disturbance']}."
    for (name, why), where in missing.items():
        places = "all" if len(where) == len(rows) else ", ".join(where)
        yield f"Without {NAMES[name]}: {places} ({why})."


if __name__ == "__main__":
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    print(tables([Row.parse(line) for line in text.splitlines()]), end="")
