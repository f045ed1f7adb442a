"""Runs `auto` and `prior` on the sampled landscapes; needs no GPU.

    python -m benchmarks.bakeoff.sampled

A sampled landscape holds some hundred configs of a kernel's space. A run chooses among these. The
command prints the evaluations of each landscape, and writes their medians into docs/search.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import optuna

from benchmarks import markdown
from benchmarks.bakeoff import held_out, runs
from benchmarks.bakeoff.report import DOCS, counts
from benchmarks.bakeoff.runs import LIMIT, TARGETS, Reached

SEEDS = 10
STRATEGIES = ("auto", "prior")
"""`prior` begins with the cost model's favourites, `auto` with the kernel's default."""
ENOUGH = 10
"""Evaluations within which a search should come close to the best."""
LANDSCAPES = Path(__file__).resolve().parents[1] / "landscapes" / "sampled"
_MAIN = TARGETS.index(0.02)


@dataclass(frozen=True)
class Row:
    """The runs of one strategy on one landscape, by seed."""

    strategy: str
    kernel: str
    device: str
    workload: str
    first_pick: float
    """The excess of the config with the least predicted time; 0.02 is 2 %, infinite if it fails."""
    default: float
    reached: list[Reached]

    def median(self, target: int = _MAIN) -> float:
        """The median of the evaluations to reach a target; infinite if most runs do not."""
        return median(counts([run[target] for run in self.reached]))

    def __str__(self) -> str:
        figures = ", ".join(_count(self.median(target)) for target in range(len(TARGETS)))
        excesses = f"default {_excess(self.default)}, first choice {_excess(self.first_pick)}"
        where = f"{self.kernel}, {self.device}, {self.workload}"
        return f"{where}: {self.strategy} {figures}; {excesses}"


def rows(path: Path, seeds: int = SEEDS) -> list[Row]:
    """Runs each strategy on one landscape with all seeds."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    course = runs.course(path, held_out.model(path))
    found = course.landscape
    where = found.kernels[0], found.target.device.name, markdown.short(found.workload)
    excesses = course.first_pick, course.default
    return [
        Row(name, *where, *excesses, [runs.own(course, name, seed) for seed in range(seeds)])
        for name in STRATEGIES
    ]


def summary(found: Sequence[Row]) -> str:
    """A table with a line for each strategy, kernel and device: medians, and the slowest."""
    heads = [f"within {target:.0%}" for target in TARGETS]
    first = ["kernel, device", "strategy", "workloads", "default", "first choice"]
    lines = [[*first, *heads, f"over {ENOUGH}", "slowest"]]
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for each in sorted(found, key=lambda each: (each.kernel, each.device)):
        groups.setdefault((each.kernel, each.device, each.strategy), []).append(each)
    for (kernel, device, strategy), own in groups.items():
        slowest = max(own, key=Row.median)
        lines.append([
            f"{kernel}, {device}", strategy, f"{len(own)}",
            _excess(median(each.default for each in own)),
            _excess(median(each.first_pick for each in own)),
            *(_count(median(each.median(t) for each in own)) for t in range(len(TARGETS))),
            f"{sum(each.median() > ENOUGH for each in own)}",
            f"{_count(slowest.median())} ({slowest.workload})",
        ])  # fmt: skip
    return markdown.table(lines)


def _excess(excess: float) -> str:
    return "fails" if math.isinf(excess) else f"{excess:+.1%}"


def _count(evaluations: float) -> str:
    return f"> {LIMIT}" if math.isinf(evaluations) else f"{evaluations:g}"


def main() -> None:
    """Runs all landscapes, prints each, and writes the summary."""
    with ProcessPoolExecutor() as pool:
        files = sorted(LANDSCAPES.glob("*.jsonl.xz"))
        found = [row for each in pool.map(rows, files) for row in each]
    print(*found, sep="\n")
    text = (
        "Medians over the workloads: how much slower than the best the kernel's default and the "
        "cost model's first choice are, and the evaluations to come close to the best. The last "
        f"two columns count and name workloads by the evaluations to within {TARGETS[_MAIN]:.0%}:"
        f"\n\n{summary(found)}"
    )
    page = DOCS / "search.md"
    filled = markdown.filled(page.read_text(encoding="utf-8"), "sampled", text)
    page.write_text(filled, encoding="utf-8")
    print(f"\n{text}", end="")


if __name__ == "__main__":
    main()
