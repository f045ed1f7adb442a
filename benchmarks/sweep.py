"""The savings of a sweep that spends its budget where most is expected, on recorded landscapes.

    python -m benchmarks.sweep

The 23 workloads of an H200 of which a sample of the configs of attention_fwd_cuda_sm90 is recorded
are swept with a budget of 48 trials for each. Their weights are 1, 1/2, ... 1/23, in a random order
for each of 20 seeds. The slices are those of `tunefa.sweep.allocate`; equal shares give each
workload 48 trials. A workload whose neighbour is done begins with its best config, in both. The
expected times come from the cost model alone, as what was learned has seen these landscapes. Needs
no GPU, and takes minutes. The table of docs/sweep.md is printed.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.bakeoff.runs import Course
from tunefa.costmodel.estimate import by_model
from tunefa.search import strategies
from tunefa.search.study import Study
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Trial, identity
from tunefa.spec.workload import Workload
from tunefa.store import distances, landscape
from tunefa.sweep import allocate, predicted_gain
from tunefa.sweep.item_state import Standing

SEEDS = 20
TRIALS_EACH = 48
FINALISTS = 8
"""So many of the best by screening race; the recorded times say which wins."""
LANDSCAPES = Path(__file__).resolve().parent / "landscapes" / "sampled"
NAMES = "nvidia-h200--*--attention_fwd_cuda_sm90.jsonl.xz"
NEAR = 3.0
"""The octaves up to which a workload is a neighbour, as for `tunefa.store.lookup`."""
MARKS = (0.125, 0.25, 0.5, 1.0)
"""The parts of the budget at which the table says what was saved."""


@dataclass
class Item:
    """One workload, while it is swept."""

    course: Course
    weight: float
    seed: int
    tried: list[Trial] = field(default_factory=list)
    settled: bool = False
    study: Study | None = None

    @property
    def key(self) -> str:
        """Its name."""
        return self.course.name

    @property
    def workload(self) -> Workload:
        """Its workload."""
        return self.course.landscape.workload

    @functools.cached_property
    def promise(self) -> float:
        """The gain that the cost model promises of its best config, relative to the default."""
        found, name = self.course.landscape, self.course.landscape.kernels[0]
        case = Case(kernels.load(name), found.workload, found.target)
        (default,) = by_model(None, case, [self.course.default_config or case.default()], [None])
        return predicted_gain.gain(default.time_us, self.course.problem.expected_us)

    @property
    def best(self) -> Config | None:
        """The config that wins the race of the best; None before any."""
        finalists = self._finalists
        excess = self.course.excess
        return min(finalists, key=lambda config: excess[identity(config)], default=None)

    @property
    def _finalists(self) -> list[Config]:
        right = [trial for trial in self.tried if trial.median_us and trial.outcome == "ok"]
        right.sort(key=lambda trial: trial.median_us or 0.0)
        return [trial.config for trial in right[:FINALISTS]]

    def begin(self, others: Sequence[Item]) -> Study:
        """Makes its study, which tries the default and the best config of its neighbour first."""
        near = [each for each in others if each.best is not None and self._octaves(each) <= NEAR]
        nearest = min(near, key=self._octaves, default=None)
        problem = replace(self.course.problem, seed=self.seed)
        held = {identity(config) for config in problem.configs}
        if nearest is not None and nearest.best is not None and identity(nearest.best) in held:
            problem = replace(problem, first=[*problem.first, nearest.best])
        return strategies.create("auto", problem)

    def _octaves(self, other: Item) -> float:
        a, b = self.workload, other.workload
        same = (a.head_dim, a.dtype, a.causal) == (b.head_dim, b.dtype, b.causal)
        return distances.distance(a, b) if same else math.inf

    def search(self, trials: int, others: Sequence[Item]) -> int:
        """Tries so many more configs. Returns how many there were."""
        strategy = self.study = self.study or self.begin(others)
        for done in range(trials):
            config = strategy.ask()
            if config is None:
                self.settled = True
                return done
            trial = self.course.landscape.screened(self.course.landscape.kernels[0], config)
            strategy.tell(trial)
            self.tried.append(trial)
        return trials

    def standing(self, spent: float) -> Standing:
        """Its standing, in which the default takes 1 us."""
        before = Standing(self.key, self.weight, self.workload, self.promise, spent)
        if self.best is None or self.study is None:
            return before
        best_us = (1.0 + self.course.excess[identity(self.best)]) / (1.0 + self.course.default)
        hoped = self.study.hoped_gain(self.study.best_us)
        return replace(before, default_us=1.0, best_us=min(1.0, best_us), hoped=hoped,
                       is_settled=self.settled)  # fmt: skip


Policy = Callable[[Sequence[Standing], float], tuple[str, int] | None]
"""Says which item gets how many trials next."""


def expected(items: Sequence[Standing], left: float) -> tuple[str, int] | None:
    """The policy of a sweep."""
    granted = allocate.grant(items, left, 1, allocate.TRIALS)
    return None if granted is None else (granted.key, round(granted.amount))


def equal(items: Sequence[Standing], left: float) -> tuple[str, int] | None:
    """Equal shares: each item once."""
    new = next((each for each in items if not each.spent), None)
    return None if new is None else (new.key, TRIALS_EACH)


def sweep(courses: Sequence[Course], seed: int, policy: Policy) -> list[tuple[float, float]]:
    """Sweeps all workloads. Returns (trials used, weighted time saved) after each slice."""
    ranks = random.Random(seed).sample(range(len(courses)), len(courses))
    items = {each.name: Item(each, 1.0 / (1 + place), seed)
             for each, place in zip(courses, ranks, strict=True)}  # fmt: skip
    spent = dict.fromkeys(items, 0.0)
    standing = {key: item.standing(0.0) for key, item in items.items()}
    whole = TRIALS_EACH * len(items)
    found: list[tuple[float, float]] = [(0.0, 0.0)]
    while chosen := policy(list(standing.values()), whole - sum(spent.values())):
        key, trials = chosen
        spent[key] += max(1, items[key].search(trials, list(items.values())))
        standing[key] = items[key].standing(spent[key])
        found.append((sum(spent.values()), sum(each.saved for each in standing.values())))
    return found


def saved_at(course: Sequence[tuple[float, float]], trials: float) -> float:
    """The weighted time that was saved when so many trials were used: what was complete then."""
    return max(saved for used, saved in course if used <= trials)


@dataclass(frozen=True)
class Row:
    """One seed: the weighted time saved at each mark by a sweep, and by equal shares at the end."""

    saved: tuple[float, ...]
    equal: float
    best: float
    """The time that could be saved."""


def row(courses: Sequence[Course], seed: int) -> Row:
    """Sweeps with one seed, in both ways."""
    whole = TRIALS_EACH * len(courses)
    ours = sweep(courses, seed, expected)
    saved = tuple(saved_at(ours, mark * whole) for mark in MARKS)
    ranks = random.Random(seed).sample(range(len(courses)), len(courses))
    best = sum(each.default / (1.0 + each.default) / (1 + place)
               for each, place in zip(courses, ranks, strict=True))  # fmt: skip
    return Row(saved, sweep(courses, seed, equal)[-1][1], best)


def main() -> None:
    """Prints the table."""
    courses = [Course(landscape.load(path)) for path in sorted(LANDSCAPES.glob(NAMES))]
    rows = [row(courses, seed) for seed in range(SEEDS)]
    print("| part of the budget | saved, relative to equal shares at the end: median | least |")
    print("|---|---|---|")
    for place, mark in enumerate(MARKS):
        parts = [each.saved[place] / each.equal for each in rows]
        print(f"| {mark:.1%} | {statistics.median(parts):.0%} | {min(parts):.0%} |")
    all_of_it = statistics.median(each.equal / each.best for each in rows)
    print(f"Equal shares save {all_of_it:.0%} of what could be saved (median).")


if __name__ == "__main__":
    main()
