"""Compares search strategies on spaces of others; needs no GPU.

    python -m benchmarks.bakeoff.yardstick CACHE.json [CACHE.json.gz ...]

CACHE is a cache file of kernel_tuner, or a T4 file, that holds every config of a space. tunefa's
strategies have no model of time there. Beside them run strategies of kernel_tuner, with their
default options. All are judged by the score of AutoTuningAssociation's methodology
(`benchmarks.bakeoff.score`) and by their evaluations. The command takes what the extra `bench`
installs. It writes yardstick.json beside this file, and the tables of docs/search.md.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import optuna

from benchmarks import markdown
from benchmarks.bakeoff import foreign, judges, runs, score
from benchmarks.bakeoff.foreign import ForeignCourse, Space, TimedTally
from benchmarks.bakeoff.report import DOCS, counts
from benchmarks.bakeoff.runs import TARGETS, Reached
from benchmarks.bakeoff.score import Scale
from tunefa.errors import TunefaError

SEEDS = 10
OWN = ("auto", "prior", "tpe", "random")
"""tunefa's strategies. `gp` takes minutes for a run of some hundred evaluations, and `grid` goes
through the list."""
PEER = "kernel_tuner"
PEERS = (
    *("bayes_opt", "genetic_algorithm", "diff_evo", "pso", "simulated_annealing", "greedy_ils"),
    *("gen_adaptive_tabu_greywolf", "gen_hybrid_vndx", "random_sample"),
)
"""kernel_tuner's, by the names of their modules. A language model wrote those with gen_."""
DATA = Path(__file__).resolve().with_suffix(".json")
PACKAGES = ("optuna", "kernel_tuner", "autotuning_methodology")
LONGER = 1.02
"""A run's time over that of the last moment that is scored, so that it reaches that moment."""


@dataclass(frozen=True)
class Run:
    """One run of a strategy on a space."""

    strategy: str
    reached: Reached
    tried: tuple[tuple[object, ...], ...]
    """The identities of the configs, in the sequence of their evaluation."""


def run(space: Space, strategy: str, seed: int, budget_ms: float) -> Run:
    """Runs a strategy until its evaluations have taken the budget."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    course = ForeignCourse(space, seed)
    tally = TimedTally(course, budget_ms)
    peer, _, name = strategy.rpartition(" ")
    if peer:
        judges.replay(course, name, seed, tally, len(space.entries))
    else:
        runs.run(course, name, seed, tally)
    return Run(strategy, tally.reached, tuple(tally.tried))


def compared(
    spaces: Sequence[Space], strategies: Sequence[str], seeds: int, folder: Path
) -> dict[str, Any]:
    """Runs all strategies on all spaces; returns all figures as plain data."""
    scales = [Scale(space, folder / f"{place}") for place, space in enumerate(spaces)]
    figures: list[dict[str, Any]] = []
    scored = []
    with ProcessPoolExecutor() as pool:
        for scale in scales:
            scale.folder.mkdir()
            budget_ms = LONGER * 1000 * scale.cutoffs[-1]
            asked = [
                [pool.submit(run, scale.space, name, seed, budget_ms) for seed in range(seeds)]
                for name in strategies
            ]
            by_name = {each[0].result().strategy: [one.result() for one in each] for each in asked}
            scored.append((scale, {name: _entries(scale, own) for name, own in by_name.items()}))
            own = score.scores(scored[-1:])
            figures.append(_facts(scale) | {"runs": _figures(by_name, own)})
    return {
        "targets": TARGETS,
        "seeds": seeds,
        "versions": {name: version(name) for name in PACKAGES},
        "scores": score.scores(scored),
        "spaces": figures,
    }


def _entries(scale: Scale, own: Sequence[Run]) -> list[list[foreign.Entry]]:
    return [[scale.space.by_identity[key] for key in each.tried] for each in own]


def _facts(scale: Scale) -> dict[str, Any]:
    space = scale.space
    return {
        "name": space.name,
        "configs": len(space.entries),
        "failed": len(space.entries) - len(space.excess),
        "within": [sum(by <= target for by in space.excess.values()) for target in TARGETS],
        "random_evaluations": scale.cutoffs[1],
    }


def _figures(by_name: dict[str, list[Run]], scores: dict[str, float]) -> dict[str, Any]:
    return {
        name: {
            "score": round(scores[name], 3),
            "reached": [each.reached for each in own],
            "evaluations": [len(each.tried) for each in own],
        }
        for name, own in by_name.items()
    }


def tables(found: dict[str, Any]) -> str:
    """The tables of docs/search.md: one of the spaces, and one of the strategies on each."""
    heads = [f"within {target:.0%}" for target in found["targets"]]
    rows = [["space", "configs", "of them fail", *heads, "evaluations of random search"]]
    for each in found["spaces"]:
        numbers = (each["configs"], each["failed"], *each["within"], each["random_evaluations"])
        rows.append([each["name"], *(f"{number:,}" for number in numbers)])
    said = markdown.table(rows)
    for each in found["spaces"]:
        rows = [["strategy", "score", *heads]]
        ranked = sorted(each["runs"].items(), key=lambda pair: -pair[1]["score"])
        for name, own in ranked:
            reached = [median(counts(column)) for column in zip(*own["reached"], strict=True)]
            rows.append([name, f"{own['score']:.2f}", *map(_count, reached)])
        said += f"\n{each['name']}:\n\n{markdown.table(rows)}"
    if len(found["spaces"]) > 1:
        best = sorted(found["scores"].items(), key=lambda pair: -pair[1])
        rows = [["all spaces", "score"], *([name, f"{value:.2f}"] for name, value in best)]
        said += f"\n{markdown.table(rows)}"
    used = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return f"{said}\nMade with {used}, {found['seeds']} seeds.\n"


def _count(evaluations: float) -> str:
    return "not in time" if math.isinf(evaluations) else f"{evaluations:g}"


def main() -> None:
    """Runs all strategies, writes the figures and the tables, and prints the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bakeoff.yardstick",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("caches", nargs="+", type=Path, metavar="CACHE")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"default: {SEEDS}")
    parser.add_argument("--dry-run", action="store_true", help="print the tables, write nothing")
    options = parser.parse_args()
    try:
        spaces = [foreign.read(path) for path in options.caches]
    except TunefaError as error:
        parser.error(str(error))
    strategies = [*OWN, *(f"{PEER} {name}" for name in PEERS)]
    with tempfile.TemporaryDirectory() as folder:
        found = compared(spaces, strategies, options.seeds, Path(folder))
    text = tables(found)
    if not options.dry_run:
        DATA.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        page = DOCS / "search.md"
        filled = markdown.filled(page.read_text(encoding="utf-8"), "yardstick", text)
        page.write_text(filled, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
