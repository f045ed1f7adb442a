"""Two kernels with eight configs each, what is predicted for them, and a device that times them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from benchmarks.predicted.rows import Answer, Measurement, Prediction, Racer
from tests.support.fake_objective import Fake
from tests.support.own_kernels import OwnKernels
from tests.support.sample_space import MODEL
from tunefa.measure.bench import KernelRaceResult
from tunefa.measure.objective import Raced
from tunefa.measure.race import Race
from tunefa.spec.kernel import Kernel
from tunefa.spec.trial import Config, Outcome, Trial
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("q1024_h8_kv2_d64")
H200 = "NVIDIA H200"
SPACE = f"""\
schema: 2
kernel: NAME
op: fwd
language: triton
parameters:
  DELAY:
    values: [1, 2, 3, 4, 5, 6, 7, 8]
    doc: what makes it slow
defaults:
  - config: {{DELAY: 5}}
{MODEL}"""


def kernels(own_kernels: OwnKernels, *names: str) -> list[Kernel]:
    """Kernels with one parameter, in the order in which they serve."""
    spaces = [SPACE.replace("op: fwd", f"op: fwd\npriority: {i}") for i in range(len(names))]
    return [own_kernels.add(name, "", each) for name, each in zip(names, spaces, strict=True)]


def answer(kernel: str, delay: int, us: float = 100.0) -> Answer:
    """An answer that is expected to take so long, give or take 10 %."""
    return Answer(kernel, {"DELAY": delay}, us, us / 1.1, us * 1.1)


def prediction(first: str, second: str, winner: int = 2, workload: str = "") -> Prediction:
    """The first kernel's config `winner` is predicted to win; the runtime takes the default."""
    return Prediction(
        workload=workload or str(WORKLOAD),
        device=H200,
        winner=answer(first, winner),
        defaults=[answer(first, 5), answer(second, 5)],
        runtime=answer(first, 5),
        made={"without": None, "budget_s": 75.0, "tunefa": "0.1"},
    )


def measurement(predicted: Prediction, winner_us: float, *others: Racer) -> Measurement:
    """A race in which the predicted winner took so long, beside others that say it themselves."""
    best_us = min([winner_us, *(each.median_us for each in others)])
    racers = [racer(["predicted"], predicted.winner.config, winner_us), *others]
    apart = [replace(each, excess=each.median_us / best_us - 1.0) for each in racers]
    return Measurement(predicted, apart, {}, {}, {}, {"device": H200, "torch": "2.9"})


def racer(roles: list[str], config: Config, us: float) -> Racer:
    """A racer whose excess is not known yet."""
    return Racer(roles, "a", dict(config), us, 0.001, 0.0, -0.001, 0.001)


class OnDevice(Fake):
    """In place of the objective on a device: a DELAY of 3 is best, and the first kernel is."""

    kind = "measured"
    given: ClassVar[list[tuple[Any, ...]]] = []
    """The arguments of each objective, beside its case."""
    slower: ClassVar[dict[str, float]] = {}
    """The factor by which a kernel is slower."""
    outcomes: ClassVar[dict[int, Outcome]] = {}
    """The failure of a DELAY that does not run, or is not right."""
    tried: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, case: Any, *given: Any) -> None:
        super().__init__(case)
        self.given.append(given)

    def us(self, kernel: str, config: Config) -> float:
        """The time of a config."""
        return self.slower.get(kernel, 1.0) * (100.0 + 10.0 * abs(int(config["DELAY"]) - 3))

    def next(self, wait_s: float = math.inf) -> Trial:
        config = self.pending.pop(0)
        self.tried.append((self.kernel.name, config["DELAY"]))
        if outcome := self.outcomes.get(config["DELAY"]):
            return Trial(config, outcome, "because")
        return Trial(config, "ok", samples_us=(self.us(self.kernel.name, config),), error=1e-3)

    def race(self, trials: Any, default: Config | None, until: float = math.inf) -> Raced:
        if not trials:
            return Raced([])
        best, *others = sorted(trials, key=lambda trial: self.us("", trial.config))
        return Raced([best, *others], best, {"decision": "raced"})

    def race_kernels(
        self, own: Trial, rivals: Sequence[tuple[str, Trial]], until: float
    ) -> KernelRaceResult:
        """Twelve rounds, each slower than the one before."""
        named = [(self.kernel.name, own), *rivals, (self.kernel.name, own)]
        times = [self.us(kernel, trial.config) for kernel, trial in named]
        race = Race(len(times))
        race.samples_us = [[us * (1.0 + n / 100) for us in times] for n in range(12)]
        won = min(named[:-1], key=lambda each: self.us(each[0], each[1].config))[0]
        return KernelRaceResult(won, {"rounds": 12, "noise_floor": 0.001, "kernel": won}, race)
