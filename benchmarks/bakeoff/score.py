"""The score of AutoTuningAssociation's methodology, by its own package.

Source: Willemsen et al., "A Methodology for Comparing Auto-Tuning Optimization Algorithms", FGCS
159 (2024), and the package `autotuning_methodology` 1.1. A run lasts as long as random search needs
to come from the median of a space to within 5 % of the way to its best (`CUTOFF`). At each moment
of it, the best time so far is compared with that of random search: 0 is as good as random search, 1
is the best config of the space, and less than 0 is worse than random search. The score is the mean
over the moments, and over the spaces.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from autotuning_methodology.baseline import RandomSearchCalculatedBaseline
from autotuning_methodology.caching import ResultsDescription
from autotuning_methodology.curves import StochasticOptimizationAlgorithm
from autotuning_methodology.report_experiments import get_strategies_aggregated_performance
from autotuning_methodology.runner import write_results
from autotuning_methodology.searchspace_statistics import SearchspaceStatistics

from benchmarks.bakeoff.foreign import TIME_KEYS, Entry, Space

CUTOFF_START, CUTOFF = 0.01, 0.95
MOMENTS = 1000
_CONFIDENCE = 0.95
"""These are the package's defaults."""
Runs = Mapping[str, Sequence[Sequence[Entry]]]
"""By strategy, the entries of each run, in the sequence of their evaluation."""


@dataclass(frozen=True)
class Scale:
    """The budget of a space, and its random search."""

    space: Space
    folder: Path
    """A folder for the files that the package reads."""

    @cached_property
    def statistics(self) -> SearchspaceStatistics:
        """The package's statistics of the space, which it reads from a T4 file."""
        path = self.folder / "space_T4.json"
        results = [t4(each) for each in self.space.entries]
        metadata = {"timeunit": "milliseconds"}
        said = {"schema_version": "1.0.0", "metadata": metadata, "results": results}
        path.write_text(json.dumps(said), encoding="utf-8")
        where = (self.space.kernel, self.space.device)
        return SearchspaceStatistics(*where, True, [*TIME_KEYS], ["time"], path, False)

    @cached_property
    def cutoffs(self) -> tuple[int, int, float, float]:
        """The evaluations, and the seconds, of the first and of the last moment."""
        found = self.statistics.cutoff_point_fevals_time_start_end(CUTOFF_START, CUTOFF)
        first, last, start_s, end_s = found
        return int(first), int(last), float(start_s), float(end_s)

    def curves(self, runs: Runs) -> tuple[Any, ...]:
        """The inputs that the package aggregates: random search, strategies' curves, and
        moments."""
        first, last, start_s, end_s = self.cutoffs
        curves = [self._curve(name, entries) for name, entries in runs.items()]
        moments = np.linspace(start_s, end_s, MOMENTS)
        baseline = RandomSearchCalculatedBaseline(self.statistics)
        return baseline, curves, self.statistics, moments, np.arange(first, last + 1)

    def _curve(self, name: str, runs: Sequence[Sequence[Entry]]) -> StochasticOptimizationAlgorithm:
        folder = self.folder / name.replace(" ", "_")
        where = (self.space.kernel, self.space.device, name, name)
        described = ResultsDescription(folder, *where, True, [*TIME_KEYS], ["time"], True)
        write_results([[t4(each, 1e-3) for each in run] for run in runs], described)
        return StochasticOptimizationAlgorithm(described)


def t4(entry: Entry, scale: float = 1.0) -> dict[str, Any]:
    """An entry in the form of T4 files; its costs are multiplied by `scale`, 0.001 for seconds.

    The objective stays in ms.
    """
    right = entry.time_ms is not None
    return {
        "timestamp": "",
        "configuration": dict(entry.config),
        "times": {
            "compilation": scale * entry.compile_ms,
            "runtimes": [scale * ms for ms in entry.runs_ms],
            "validation": scale * entry.verify_ms,
            "framework": 0.0,
            "search_algorithm": 0.0,
        },
        "invalidity": "correct" if right else "runtime",
        "correctness": float(right),
        "measurements": [
            {
                "name": "time",
                "value": entry.time_ms if right else entry.failure,
                "unit": "milliseconds",
            }
        ],
        "objectives": ["time"],
    }


def scores(spaces: Sequence[tuple[Scale, Runs]]) -> dict[str, float]:
    """Returns the score of each strategy over all spaces. All have runs of the same strategies.

    The package draws samples of the runs (bagging), here always the same.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.random.seed(0)
        found = [scale.curves(runs) for scale, runs in spaces]
        curves, *_ = get_strategies_aggregated_performance(found, _CONFIDENCE)
    names = list(spaces[0][1])
    return {name: float(np.mean(curve)) for name, curve in zip(names, curves, strict=True)}
