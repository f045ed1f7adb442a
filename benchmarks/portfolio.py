"""Portfolios of the recorded landscapes: how few configs serve all workloads of a kernel.

    python -m benchmarks.portfolio                                  # the table of docs/search.md
    python -m benchmarks.portfolio --measure attention_fwd_triton   # on a GPU: the 2 % portfolio

A kernel counts on each device that has landscapes of at least six workloads. With `--measure`, the
best config of each workload races its config of the portfolio on the GPU of this machine, in
interleaved rounds, and the table of these races is written into docs/search.md too. Where both are
one config there is nothing to race.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import markdown
from benchmarks.landscape import FOLDER, SAMPLED
from tunefa.compile.launch import driver
from tunefa.compile.pool import compilers
from tunefa.compile.workers import Workers
from tunefa.measure.measured import MeasuredInGraph
from tunefa.measure.objective import Objective
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Trial, identity
from tunefa.store import landscape, portfolio
from tunefa.store.portfolio import Choices, Measured, Portfolio

LEAST_WORKLOADS = 6
REGRETS = (0.01, 0.02, 0.05)
MEASURED = 0.02
"""The regret of the portfolio that is measured."""
RACE_S = 1.5
"""The time that is kept for a race; it has two looks at the standing, however little is left."""
PAGE = Path(__file__).resolve().parents[1] / "docs" / "search.md"

Make = Callable[[Case, int | None, Workers | None, Workers | None], Objective]
"""Makes an objective from a case, a number of workers, the process on the device, and compilers."""


def by_kernel(folders: Sequence[Path] = (FOLDER, SAMPLED)) -> dict[tuple[str, str], Choices]:
    """The content of the landscapes in these folders, by kernel and device."""
    groups: dict[tuple[str, str], list[landscape.Landscape]] = {}
    for path in sorted(file for folder in folders for file in folder.glob("*.jsonl.xz")):
        found = landscape.load(path)
        for kernel in found.kernels:
            groups.setdefault((kernel, found.target.device.name), []).append(found)
    return {
        key: Choices(own[0].target, portfolio.measured(own, [key[0]]))
        for key, own in sorted(groups.items())
        if len({each.workload for each in own}) >= LEAST_WORKLOADS
    }


def summary(found: dict[tuple[str, str], Choices]) -> str:
    """A table with a line for each kernel: how many configs there must be for each regret."""
    heads = [f"{regret:.0%}" for regret in REGRETS]
    rows = [["kernel, device", "workloads", "configs", "pairs measured", *heads]]
    for (kernel, device), choices in found.items():
        measured = sum(len(each.times_us) + len(each.failed) for each in choices.workloads)
        rows.append([
            f"{kernel}, {device}",
            f"{len(choices.workloads)}",
            f"{len(choices.keys):,}",
            f"{measured / (measured + choices.unmeasured):.0%}",
            *(_count(choices.within(regret), choices) for regret in REGRETS),
        ])  # fmt: skip
    return markdown.table(rows)


def _count(chosen: Portfolio, choices: Choices) -> str:
    bounds = f"{chosen.bound}, {choices.least_possible(chosen.regret)}"
    return f"{len(chosen.configs)} ({bounds})"


@dataclass(frozen=True)
class Raced:
    """The best config of a workload beside its config of the portfolio."""

    own: Measured
    recorded: float
    """The regret in the landscapes; 0.02 is 2 %."""
    best_us: float | None = None
    portfolio_us: float | None = None
    regret: float | None = None
    """The regret in the race: the median of the ratios of its rounds, less 1."""
    noise: float | None = None
    remark: str = ""

    @property
    def row(self) -> list[str]:
        """The cells of the table."""
        times = [f"{us:.1f}" if us else "" for us in (self.best_us, self.portfolio_us)]
        said = self.remark if self.regret is None else f"{self.regret:+.1%}"
        floor = "" if self.noise is None else f"{self.noise:.1%}"
        return [markdown.short(self.own.workload), *times, f"{self.recorded:+.1%}", said, floor]


@dataclass(frozen=True)
class Pair:
    """Two configs of one workload that are compiled and race."""

    own: Measured
    recorded: float
    objective: Objective
    trials: tuple[Trial, Trial]
    """The recorded trials of the best config, and of the portfolio's."""

    def screened(self, until: float) -> list[Trial] | Raced:
        """Compiles and checks both configs; says why there is no race if that fails."""
        found: list[Trial] = []
        for _ in self.trials:
            trial = self.objective.next(max(0.0, until - time.monotonic()))
            if trial is None or trial.outcome != "ok":
                self.objective.settle()  # the other one may run already
                why = "the time was over" if trial is None else f"{trial.outcome}: {trial.reason}"
                return self._without(why)
            found.append(trial)
        return found

    def raced(self, found: Sequence[Trial], until: float) -> Raced:
        """Races both configs until about `until`."""
        result = self.objective.race(found, None, until)
        noise = (result.certificate or {}).get("noise_floor")
        screened = {identity(trial.config): trial.samples_us for trial in found}
        by_config = {identity(trial.config): trial for trial in result.trials}
        best, other = (by_config[identity(trial.config)] for trial in self.trials)
        if wrong := [trial for trial in (best, other) if trial.outcome != "ok"]:
            return self._without(f"{wrong[0].outcome}: {wrong[0].reason}")
        if any(each.samples_us == screened[identity(each.config)] for each in (best, other)):
            return self._without("one program")  # of which the race times one config
        ratio = median(a / b for a, b in zip(other.samples_us, best.samples_us, strict=False))
        times = best.median_us, other.median_us
        return Raced(self.own, self.recorded, *times, ratio - 1.0, noise)

    def _without(self, why: str) -> Raced:
        return Raced(self.own, self.recorded, remark=why)


def races(
    chosen: Portfolio, seconds: float, workers: int | None, make: Make = MeasuredInGraph
) -> list[Raced]:
    """Races each workload's best config against its config of the portfolio, on this device.

    All configs are compiled first, so that the cores are idle while configs race.
    """
    until, dispatch = time.monotonic() + seconds, chosen.dispatch
    count = workers or max(1, (os.cpu_count() or 1) - 2)
    found: list[Raced] = []
    pairs: list[Pair] = []
    with compilers(count) as shared, Workers(1) as bench, contextlib.ExitStack() as stack:
        for own in chosen.workloads:
            key, best = dispatch[own.workload], min(own.times_us, key=lambda k: own.times_us[k])
            if key == best:
                found.append(Raced(own, 0.0, remark="the same config"))
                continue
            case = Case(kernels.load(key[0]), own.workload, chosen.target)
            objective = stack.enter_context(make(case, None, bench, shared))
            two = own.trials[best], own.trials[key]
            for trial in two:
                objective.submit(trial.config)
            pairs.append(Pair(own, own.regrets[key], objective, two))
        ready = []
        for pair in pairs:
            screened = pair.screened(until - RACE_S * len(pairs))
            if isinstance(screened, Raced):
                found.append(screened)
            else:
                ready.append((pair, screened))
        for place, (pair, screened) in enumerate(ready):
            now = time.monotonic()
            found.append(pair.raced(screened, now + (until - now) / (len(ready) - place)))
    return sorted(found, key=lambda each: str(each.own.workload))


def race_table(chosen: Portfolio, found: Sequence[Raced], kernel: str) -> str:
    """The table of the races, under a sentence that says what they are."""
    heads = ["workload", "best, us", "portfolio, us", "recorded", "raced", "noise floor"]
    raced = [each.regret for each in found if each.regret is not None]
    worst = f"at most {max(raced):.1%} slower" if raced else "none raced"
    return (
        f"{kernel}, {chosen.target.device.name}: {len(chosen.configs)} configs for "
        f"{len(found)} workloads within {chosen.regret:.0%}; {len(raced)} workloads raced, "
        f"{worst}:\n\n{markdown.table([heads, *(each.row for each in found)])}"
    )


def main() -> None:
    """Writes the tables of docs/search.md, and prints them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.portfolio",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--measure", metavar="KERNEL", help="race on this machine's GPU")
    parser.add_argument("--seconds", type=float, default=55.0, help="of the races; default: 55")
    parser.add_argument("--workers", type=int, help="compilers at once")
    options = parser.parse_args()
    if options.measure is not None and not driver.devices():
        parser.error("--measure needs a GPU, and this machine has none")
    found = by_kernel()
    name, text = "portfolio", summary(found)
    if options.measure is not None:
        target = Target.named(driver.device(0).name)
        key = options.measure, target.device.name
        if key not in found:
            known = ", ".join(kernel for kernel, device in found if device == key[1]) or "none"
            parser.error(f"too few landscapes of {key[0]} on {key[1]}: name one of {known}")
        chosen = found[key].within(MEASURED)
        raced = races(chosen, options.seconds, options.workers)
        name, text = f"portfolio of {key[0]}", race_table(chosen, raced, key[0])
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(markdown.filled(page, name, text), encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
