"""What the runs say: tables on the screen and in docs/search.md, and the plot beside them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bakeoff.runs import LIMIT, TARGETS, Course, Reached

DOCS = Path(__file__).resolve().parents[2] / "docs"
_MARKS = re.compile(r"(?<=<!-- bakeoff -->\n).*?(?=<!-- end of bakeoff -->)", re.DOTALL)
_MAIN = TARGETS.index(0.02)
_HEADS = [f"within {target:.0%}" for target in TARGETS]


@dataclass(frozen=True)
class Ground:
    """What there is to find in a landscape."""

    landscape: str
    configs: int
    within: tuple[int, ...]
    """How many of them are within each target."""
    first_pick: float
    """The excess of the model's favourite before anything is compiled."""
    default: float
    """The excess of the kernel's default."""


def ground(course: Course) -> Ground:
    """The facts of one landscape."""
    within = tuple(sum(e <= target for e in course.excess.values()) for target in TARGETS)
    count = len(course.problem.configs)
    return Ground(course.name, count, within, course.first_pick, course.default)


@dataclass(frozen=True)
class Outcome:
    """The runs of one strategy over one landscape, by seed."""

    landscape: str
    strategy: str
    reached: list[Reached]
    limit: int = LIMIT
    """Evaluations after which a run was given up."""

    def shown(self, target: int) -> str:
        """The median, as a table has it."""
        return _count(self.median(target), self.limit)

    def median(self, target: int) -> float:
        """Evaluations to within a target, by its place; infinite if most runs do not get there."""
        return median(counts([run[target] for run in self.reached]))


def counts(reached: Sequence[int | None]) -> list[float]:
    """Evaluations as numbers; infinite for a run that did not get there."""
    return [math.inf if count is None else float(count) for count in reached]


@dataclass(frozen=True)
class Report:
    """All grounds and outcomes, strategies in the order of the runs."""

    grounds: Sequence[Ground]
    outcomes: Sequence[Outcome]
    versions: dict[str, str]

    @property
    def strategies(self) -> list[str]:
        """The names, best first: by the median over landscapes of evaluations to within 2 %."""
        names = dict.fromkeys(outcome.strategy for outcome in self.outcomes)
        return sorted(names, key=lambda name: [self.overall(name, t) for t in (_MAIN, 0, 2)])

    def of(self, strategy: str) -> list[Outcome]:
        """A strategy's outcomes, one per landscape."""
        return [outcome for outcome in self.outcomes if outcome.strategy == strategy]

    def overall(self, strategy: str, target: int) -> float:
        """Median over landscapes of the median over seeds."""
        return median(outcome.median(target) for outcome in self.of(strategy))

    def to_data(self) -> dict[str, Any]:
        """Every count, for those who want to compute something else."""
        runs = [vars(outcome) for outcome in self.outcomes]
        landscapes = [vars(ground) for ground in self.grounds]
        return {
            "targets": TARGETS,
            "limit": LIMIT,
            "versions": self.versions,
            "landscapes": landscapes,
            "runs": runs,
        }

    def show(self, console: Console) -> None:
        """The tables on the screen."""
        for title, rows in self._tables().items():
            table = Table(title=title, title_justify="left", box=None)
            for place, head in enumerate(rows[0]):
                table.add_column(head, justify="right" if place else "left", no_wrap=not place)
            for row in rows[1:]:
                table.add_row(*row)
            console.print(table)

    def write(self) -> None:
        """The tables into docs/search.md, and the plot beside it."""
        from benchmarks.bakeoff import plot  # it needs matplotlib, which tables do not

        page = DOCS / "search.md"
        page.write_text(self.filled(page.read_text(encoding="utf-8")), encoding="utf-8")
        lines = [
            plot.Line(name, self.pooled(name), self.of(name)[0].limit) for name in self.strategies
        ]
        plot.draw(lines, DOCS / "search.png")

    def filled(self, page: str) -> str:
        """A page with the tables between its marks, in place of what was there."""
        made = "\n".join(f"{title}:\n\n{_markdown(rows)}" for title, rows in self._tables().items())
        used = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return _MARKS.sub(lambda _: f"\n{made}\nMade with {used}.\n\n", page)

    def pooled(self, strategy: str) -> list[float]:
        """Evaluations to within 2 % of every run of a strategy."""
        return [c for o in self.of(strategy) for c in counts([run[_MAIN] for run in o.reached])]

    def _tables(self) -> dict[str, list[list[str]]]:
        pick = median(ground.first_pick for ground in self.grounds)
        return {
            "Evaluations, median over the landscapes of the median over seeds": self._overall(),
            "Evaluations to within 2 %, median over seeds, by landscape; the model's first pick is "
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
        """Landscapes side by side: what there is to find, then how soon each strategy found it."""
        rows = [
            ["", *(_short(ground.landscape) for ground in self.grounds)],
            ["feasible configs", *(f"{ground.configs:,}" for ground in self.grounds)],
        ]
        for place, head in enumerate(_HEADS):
            rows.append([f"of them {head}", *(f"{g.within[place]}" for g in self.grounds)])
        rows.append(["the kernel's default", *(f"+{g.default:.1%}" for g in self.grounds)])
        rows.append(["model's first pick", *(f"+{g.first_pick:.1%}" for g in self.grounds)])
        for name in self.strategies:
            found = {outcome.landscape: outcome.shown(_MAIN) for outcome in self.of(name)}
            rows.append([name, *(found[ground.landscape] for ground in self.grounds)])
        return rows


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    lines = [rows[0], rule, *rows[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _count(evaluations: float, limit: int) -> str:
    return f"> {limit}" if math.isinf(evaluations) else f"{evaluations:g}"


def _short(workload: str) -> str:
    """The parts that differ between landscapes, several to a line of a narrow column."""
    parts = workload.removeprefix("fwd_").replace("_bf16", "").split("_")
    return " ".join(part for part in parts if not part.startswith("kv"))
