"""Measures the regret of not searching: how much slower the runtime's choice is than the best
config, for workloads that were not tuned.

    python -m benchmarks.neighbours --rounds 9 --out neighbours.jsonl

There are twenty workloads, with other lengths, batches and heads than those in results/. For each,
the config that `import tunefa` runs is timed in interleaved rounds with its rivals: the default of
every kernel that serves the workload, the config of every record that can run it, and every config
that differs from the choice in one or two parameters. The least of many medians is partly luck, so
the fastest few are timed once more, with the choice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tunefa.compile.contract import CompileError
from tunefa.compile.launch import driver
from tunefa.compile.pool import CompilePool, compilers
from tunefa.compile.workers import Workers
from tunefa.errors import TunefaError
from tunefa.measure import check, launches
from tunefa.measure.comparison import TOLERANCE
from tunefa.measure.timing import BoundLaunch, Stopwatch
from tunefa.runtime import choose
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload
from tunefa.store import results as store
from tunefa.store.lookup import Choice
from tunefa.store.results import Store

FINALISTS = 5
"""The number of rivals that are timed once more."""
FINAL = 3
"""The factor of the rounds when they are timed once more."""
WORKLOADS = (
    "b3_h12_q640_d64_full",
    "b5_h12_q900_d64_causal",
    "b2_h20_q1536_d64_full",
    "b1_h25_q3000_d64_causal",
    "b1_h14_kv2_q6000_d64_causal",
    "b6_h16_q1000_d64_fp16_causal",
    "b12_h8_q700_d128_full",
    "b3_h24_q1300_d128_causal",
    "b1_h40_q2500_d128_causal",
    "b1_h28_kv4_q3500_d128_causal",
    "b2_h24_kv8_q5000_d128_causal",
    "b1_h64_kv8_q12000_d128_causal",
    "b1_h10_q10000_d128_full",
    "b1_h32_kv8_q1500_k9000_d128_causal",
    "b4_h20_q1100_d128_fp16_full",
    "b7_h4_q800_d256_full",
    "b2_h10_q2200_d256_causal",
    "b1_h16_kv8_q7000_d256_causal",
    "b2_h18_q3300_d80_causal",
    "b3_h16_q2600_d96_full",
)


@dataclass(frozen=True)
class Regret:
    """The runtime's choice for one workload beside the fastest of its rivals."""

    workload: str
    why: str
    """The reason that the config was chosen."""
    chosen: str
    """The kernel of the choice."""
    found: str
    """The kernel of the fastest config."""
    chosen_us: float
    found_us: float
    timed: int
    """The number of configs that were timed, with the choice."""
    config: Config
    """The fastest config."""

    @property
    def excess(self) -> float:
        """The relative excess time of the choice; 0.02 means 2 %."""
        return self.chosen_us / self.found_us - 1.0


@dataclass(frozen=True)
class Rival:
    """A config of a kernel."""

    case: Case
    config: Config

    def __str__(self) -> str:
        return f"{self.case.kernel.name} {dict(self.config)}"

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal configs of one kernel."""
        return self.case.kernel.name, *sorted(self.config.items())

    def neighbours(self) -> Iterator[Rival]:
        """Yields configs with another value of one parameter; rules may refuse them."""
        for parameter in self.case.kernel.space.parameters:
            for value in parameter.values:
                yield Rival(self.case, {**self.config, parameter.name: value})

    def launch(self, tensors: Sequence[Any]) -> BoundLaunch:
        """A launch on `tensors`, see `launches.launch`. The binary is in the cache."""
        return launches.launch(self.case, self.config, tensors)


def rivals(known: Store, choice: Choice, cases: Sequence[Case]) -> list[Rival]:
    """The choice, then all its rivals, each once, without those that a rule refuses."""
    by_name = {case.kernel.name: case for case in cases}
    chosen = Rival(by_name[choice.kernel], choice.config)
    listed = [chosen]
    for case in cases:
        with contextlib.suppress(TunefaError):  # it has no default for this
            listed.append(Rival(case, case.default()))
    records = (record for record in known.records() if record.kernel in by_name)
    listed += (Rival(by_name[record.kernel], record.config) for record in records)
    near = list(chosen.neighbours())
    listed += near
    listed += (further for each in near for further in each.neighbours())
    distinct: dict[object, Rival] = {}
    for each in listed:
        if each.case.refusal(each.config) is None:
            distinct.setdefault(each.key, each)
    return list(distinct.values())


def regret(
    choice: Choice, workload: Workload, timed: Sequence[tuple[Rival, float]], count: int
) -> Regret:
    """The regret from finalists with medians in us, the choice first; `count` were timed in all."""
    fastest, found_us = min(timed, key=lambda each: each[1])
    return Regret(
        workload=str(workload),
        why=choice.why,
        chosen=choice.kernel,
        found=fastest.case.kernel.name,
        chosen_us=timed[0][1],
        found_us=found_us,
        timed=count,
        config=dict(fastest.config),
    )


def table(regrets: Sequence[Regret]) -> str:
    """A Markdown table of the regrets, and their median and maximum in one sentence."""
    lines = ["| workload | choice | us | fastest | regret |", "| --- | --- | ---: | ---: | ---: |"]
    for each in regrets:
        short = each.workload.removeprefix("fwd_")
        times = f"{each.chosen_us:.1f} | {each.found_us:.1f} | {each.excess:.1%}"
        lines.append(f"| {short} | {each.why} | {times} |")
    excesses = [each.excess for each in regrets]
    said = f"Regret: median {statistics.median(excesses):.1%}, largest {max(excesses):.1%}."
    return "\n".join(lines) + f"\n\n{said}\n"


def compiled(listed: Sequence[Rival], processes: Workers) -> list[Rival]:
    """Compiles configs into the cache; returns those that compile, the choice first.

    Prints how many do not. Raises ValueError if the choice does not compile.
    """
    cases = {each.case.kernel.name: each.case for each in listed}
    pools = {name: CompilePool(case, processes=processes) for name, case in cases.items()}
    pending = [pools[each.case.kernel.name].submit(each.config) for each in listed]
    trials = [each.trial() for each in pending]
    if trials[0].outcome != "ok":
        raise ValueError(f"the choice does not compile: {trials[0].reason}")
    found = [each for each, trial in zip(listed, trials, strict=True) if trial.outcome == "ok"]
    failed = len(listed) - len(found)
    _say(f"{listed[0].case.workload}: {len(listed)} configs, of which {failed} do not compile")
    return found


def checked(listed: Sequence[Rival], tensors: Sequence[Any]) -> list[tuple[Rival, BoundLaunch]]:
    """Checks configs; returns the right ones with their launches on `tensors`, the choice first.

    Prints which are wrong, and why. Raises ValueError if the choice is wrong, and CompileError if
    it cannot run on the device.
    """
    import torch

    chosen, *others = listed
    workload = chosen.case.workload
    out, launch = tensors[3], chosen.launch(tensors)
    launch()
    compared = check.compare(workload, tuple(tensors), workload.head_dim**-0.5, torch.float32)
    if not compared.passed:
        raise ValueError(f"the choice is wrong: {compared.reason}")
    right, found = out.float(), [(chosen, launch)]
    limit = 2 * TOLERANCE[workload.dtype]  # each of the two may have an error of one tolerance
    for each in others:
        try:
            launch = each.launch(tensors)
        except CompileError as error:
            _say(f"{workload}: left out: {each}: {error}")
            continue
        off = difference(launch, out, right)
        if off <= limit:
            found.append((each, launch))
        else:
            _say(f"{workload}: left out: {each}: differs from the choice by {off:.1e}")
    return found


def difference(launch: Callable[[], Any], out: Any, right: Any) -> float:
    """||out - right|| / ||right|| of a launch's output; NaN if an element is not written."""
    out.fill_(float("nan"))
    launch()
    return float((out.float() - right).norm() / right.norm())


def measured(workload: Workload, known: Store, processes: Workers, rounds: int) -> Regret:
    """Times the choice and its rivals on the device; returns the regret.

    Raises ValueError or CompileError if the choice does not compile, does not run or is wrong, and
    TunefaError if no kernel serves the workload.
    """
    target = Target.named(driver.device(0).name)
    serving = tuple(kernels.serving(workload, target.arch))
    choice = choose.choose(known, workload, target, serving)
    cases = [Case(kernel, workload, target) for kernel in serving]
    listed = compiled(rivals(known, choice, cases), processes)
    tensors = check.tensors(workload, "cuda", seed=0)
    right = checked(listed, tensors)
    stopwatch = Stopwatch("graph")
    ready = [(each, stopwatch.prepared(launch)) for each, launch in right]
    timed = timed_in_turns(stopwatch, ready, rounds)
    few = finalists([us for _, us in timed])
    final = timed_in_turns(stopwatch, [ready[i] for i in few], FINAL * rounds)
    return regret(choice, workload, final, len(timed))


def timed_in_turns(
    stopwatch: Stopwatch, ready: Sequence[tuple[Rival, BoundLaunch]], rounds: int
) -> list[tuple[Rival, float]]:
    """Each rival with its median in us over interleaved rounds."""
    samples = stopwatch.rounds_us([launch for _, launch in ready], rounds)
    return [(each, statistics.median(own)) for (each, _), own in zip(ready, samples, strict=True)]


def finalists(medians: Sequence[float]) -> list[int]:
    """The places of the choice, which is the first, and of its fastest rivals."""
    return [0, *sorted(range(1, len(medians)), key=lambda place: medians[place])[:FINALISTS]]


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def main() -> None:
    """Prints each regret, then the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.neighbours",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workloads", nargs="*", type=Workload.parse, metavar="WORKLOAD")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each config; default: 9")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="compilers at once")
    parser.add_argument("--out", type=Path, help="append JSON lines to this file")
    options = parser.parse_args()
    known = store.default_store()
    regrets = []
    with compilers(options.workers) as processes:
        for workload in options.workloads or map(Workload.parse, WORKLOADS):
            try:
                found = measured(workload, known, processes, options.rounds)
            except (ValueError, TunefaError, CompileError) as error:
                _say(f"{workload}: left out: {error}")
                continue
            regrets.append(found)
            _say(f"{found.workload}: {found.excess:.1%} ({found.why})")
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(found)) + "\n")
    if not regrets:
        sys.exit("nothing was measured")
    print(table(regrets), end="")


if __name__ == "__main__":
    main()
