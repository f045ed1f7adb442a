"""Compares search strategies on the recorded landscapes; needs no GPU.

    make bench-search

Every strategy of tunefa's and some of kernel_tuner's run over every landscape with 30 seeds. Writes
bakeoff.json beside this file, the tables of docs/search.md and the plot docs/search.png.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path

import optuna
from rich.console import Console
from rich.progress import Progress

from benchmarks.bakeoff import judges, report, runs
from benchmarks.bakeoff.report import Outcome
from tunefa.search import strategies

SEEDS = 30
LANDSCAPES = Path(__file__).resolve().parent.parent / "landscapes"
DATA = Path(__file__).resolve().with_name("bakeoff.json")
PEER = "kernel_tuner"


def outcome(path: Path, strategy: str) -> Outcome:
    """All runs of one strategy over one landscape."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    course = runs.course(path)
    peer, _, name = strategy.rpartition(" ")
    run = judges.run if peer else runs.own
    reached = [run(course, name, seed) for seed in range(SEEDS)]
    return Outcome(course.name, strategy, reached, runs.SLOW.get(name, runs.LIMIT))


def main() -> None:
    """Runs everything, and reports."""
    paths = sorted(LANDSCAPES.glob("*.jsonl.xz"))
    named = [*strategies.names(), *(f"{PEER} {name}" for name in judges.NAMES)]
    outcomes = []
    console = Console(stderr=True)
    with ProcessPoolExecutor() as pool, Progress(console=console) as progress:
        asked = [pool.submit(outcome, path, name) for name in named for path in paths]
        bar = progress.add_task("runs", total=len(asked))
        for done in as_completed(asked):
            outcomes.append(done.result())
            progress.advance(bar)
    outcomes.sort(key=lambda each: (named.index(each.strategy), each.landscape))
    grounds = [report.ground(runs.course(path)) for path in paths]
    versions = {name: version(name) for name in ("optuna", "kernel_tuner")}
    made = report.Report(grounds, outcomes, versions)
    DATA.write_text(json.dumps(made.to_data(), indent=1) + "\n", encoding="utf-8")
    made.show(Console())
    made.write()


if __name__ == "__main__":
    main()
