"""The report of the runs: tables on the screen and in docs/search.md, and a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import markdown
from benchmarks.bakeoff.runs import LIMIT, TARGETS, Course, Reached

DOCS = Path(__file__).resolve().parents[2] / "docs"
_MAIN = TARGETS.index(0.02)
_HEADS = [f"within {target:.0%}" for target in TARGETS]


@dataclass(frozen=True)
class LandscapeFacts:
    """The number of good configs in a landscape, and how good the obvious ones are."""

    landscape: str
    configs: int
    within: tuple[int, ...]
    """The number of configs within each target."""
    first_pick: float
    """The excess of the config with the least predicted time, before any is compiled."""
    default: float
    """The excess of the kernel's default config."""


def facts(course: Course) -> LandscapeFacts:
    """The facts of one landscape."""
    within = tuple(sum(e <= target for e in course.excess.values()) for target in TARGETS)
    count = len(course.problem.configs)
    return LandscapeFacts(course.name, count, within, course.first_pick, course.default)


@dataclass(frozen=True)
class StrategyRuns:
    """The runs of one strategy on one landscape, by seed."""

    landscape: str
    strategy: str
    reached: list[Reached]
    limit: int = LIMIT
    """Evaluations after which a run was given up."""

    def shown(self, target: int) -> str:
        """The median as a table shows it."""
        return _count(self.median(target), self.limit)

    def median(self, target: int) -> float:
        """The median of the evaluations to reach a target; infinite if most runs do not reach
        it."""
        return median(counts([run[target] for run in self.reached]))


def counts(reached: Sequence[int | None]) -> list[float]:
    """Evaluations as numbers; infinite for a run that did not reach the target."""
    return [math.inf if count is None else float(count) for count in reached]


@dataclass(frozen=True)
class Report:
    """The facts of all landscapes, and the runs of all strategies."""

    landscapes: Sequence[LandscapeFacts]
    results: Sequence[StrategyRuns]
    versions: dict[str, str]

    @property
    def strategies(self) -> list[str]:
        """The names of the strategies, best first, by `overall` of the 2 % target."""
        names = dict.fromkeys(result.strategy for result in self.results)
        return sorted(names, key=lambda name: [self.overall(name, t) for t in (_MAIN, 0, 2)])

    def of(self, strategy: str) -> list[StrategyRuns]:
        """A strategy's runs on each landscape."""
        return [result for result in self.results if result.strategy == strategy]

    def overall(self, strategy: str, target: int) -> float:
        """Median over landscapes of the median over seeds."""
        return median(result.median(target) for result in self.of(strategy))

    def to_data(self) -> dict[str, Any]:
        """All counts as plain data, for further statistics."""
        runs = [vars(result) for result in self.results]
        landscapes = [vars(facts) for facts in self.landscapes]
        return {
            "targets": TARGETS,
            "limit": LIMIT,
            "versions": self.versions,
            "landscapes": landscapes,
            "runs": runs,
        }

    def show(self, console: Console) -> None:
        """Prints the tables."""
        for title, rows in self._tables().items():
            table = Table(title=title, title_justify="left", box=None)
            for place, head in enumerate(rows[0]):
                table.add_column(head, justify="right" if place else "left", no_wrap=not place)
            for row in rows[1:]:
                table.add_row(*row)
            console.print(table)

    def write(self) -> None:
        """Writes the tables into docs/search.md, and the plot beside it."""
        from benchmarks.bakeoff import plot  # it needs matplotlib, which tables do not

        page = DOCS / "search.md"
        page.write_text(self.filled(page.read_text(encoding="utf-8")), encoding="utf-8")
        lines = [
            plot.Line(name, self.pooled(name), self.of(name)[0].limit) for name in self.strategies
        ]
        plot.draw(lines, DOCS / "search.png")

    def filled(self, page: str) -> str:
        """Returns the page with new tables between its marks."""
        made = "\n".join(
            f"{title}:\n\n{markdown.table(rows)}" for title, rows in self._tables().items()
        )
        used = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return markdown.filled(page, "bakeoff", f"{made}\nMade with {used}.\n")

    def pooled(self, strategy: str) -> list[float]:
        """The evaluations to reach 2 %, of every run of a strategy."""
        return [c for o in self.of(strategy) for c in counts([run[_MAIN] for run in o.reached])]

    def _tables(self) -> dict[str, list[list[str]]]:
        pick = median(each.first_pick for each in self.landscapes)
        return {
            "Evaluations, median over the landscapes of the median over seeds": self._overall(),
            "Evaluations to within 2 %, median over seeds, by landscape; the cost model's first "
            "choice is "
            f"{pick:.0%} slower than the best in the median": self._by_landscape(),
        }

    def _overall(self) -> list[list[str]]:
        rows = [["strategy", *_HEADS]]
        for name in self.strategies:
            limit = self.of(name)[0].limit
            figures = (self.overall(name, target) for target in range(len(TARGETS)))
            rows.append([name, *(_count(figure, limit) for figure in figures)])
        return rows

    def _by_landscape(self) -> list[list[str]]:
        """The table by landscape: its facts, then the evaluations of each strategy."""
        rows = [
            ["", *(_short(each.landscape) for each in self.landscapes)],
            ["feasible configs", *(f"{each.configs:,}" for each in self.landscapes)],
        ]
        for place, head in enumerate(_HEADS):
            rows.append([f"of them {head}", *(f"{g.within[place]}" for g in self.landscapes)])
        rows.append(["the kernel's default", *(f"+{g.default:.1%}" for g in self.landscapes)])
        rows.append(
            ["cost model's first choice", *(f"+{g.first_pick:.1%}" for g in self.landscapes)]
        )
        for name in self.strategies:
            found = {result.landscape: result.shown(_MAIN) for result in self.of(name)}
            rows.append([name, *(found[each.landscape] for each in self.landscapes)])
        return rows


def _count(evaluations: float, limit: int) -> str:
    return f"> {limit}" if math.isinf(evaluations) else f"{evaluations:g}"


def _short(workload: str) -> str:
    """The parts of a workload that differ between landscapes."""
    parts = workload.removeprefix("fwd_").replace("_bf16", "").split("_")
    return " ".join(part for part in parts if not part.startswith("kv"))
