"""Compares search strategies on the recorded landscapes; needs no GPU.

    make bench-search

All strategies of tunefa and some of kernel_tuner run on every landscape with 30 seeds. A landscape
holds the recorded times of all configs for one workload. What strategies know of times was learned
from the other workloads, by models that are fitted first. The command writes bakeoff.json beside
this file, the tables of docs/search.md and the plot docs/search.png.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path

import optuna
from rich.console import Console
from rich.progress import Progress

from benchmarks.bakeoff import held_out, judges, report, runs
from benchmarks.bakeoff.report import StrategyRuns
from tunefa.costmodel.learned import LearnedModel
from tunefa.search import strategies

SEEDS = 30
LANDSCAPES = Path(__file__).resolve().parent.parent / "landscapes"
DATA = Path(__file__).resolve().with_name("bakeoff.json")
PEER = "kernel_tuner"


def run_strategy(path: Path, strategy: str, model: LearnedModel | None) -> StrategyRuns:
    """Runs one strategy on one landscape with all seeds; the model has not seen its workload."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    course = runs.course(path, model)
    peer, _, name = strategy.rpartition(" ")
    run = judges.run if peer else runs.own
    reached = [run(course, name, seed) for seed in range(SEEDS)]
    return StrategyRuns(course.name, strategy, reached, runs.SLOW.get(name, runs.LIMIT))


def main() -> None:
    """Runs all strategies on all landscapes, and writes the report."""
    paths = sorted(LANDSCAPES.glob("*.jsonl.xz"))
    named = [*strategies.names(), *(f"{PEER} {name}" for name in judges.NAMES)]
    results = []
    console = Console(stderr=True)
    with ProcessPoolExecutor() as pool, Progress(console=console) as progress:
        models = dict(zip(paths, pool.map(held_out.model, paths), strict=True))
        asked = [
            pool.submit(run_strategy, path, name, models[path]) for name in named for path in paths
        ]
        bar = progress.add_task("runs", total=len(asked))
        for done in as_completed(asked):
            results.append(done.result())
            progress.advance(bar)
    results.sort(key=lambda each: (named.index(each.strategy), each.landscape))
    landscapes = [report.facts(runs.course(path, models[path])) for path in paths]
    versions = {name: version(name) for name in ("optuna", "kernel_tuner")}
    made = report.Report(landscapes, results, versions)
    DATA.write_text(json.dumps(made.to_data(), indent=1) + "\n", encoding="utf-8")
    made.show(Console())
    made.write()


if __name__ == "__main__":
    main()
