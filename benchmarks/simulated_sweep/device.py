"""The times of a simulated GPU: of each config's launch, of its trial, and of races.

They follow what a bench does: the inputs and references that it makes, and the launches of each
check and round. A launch runs at a part of an H200's peak, which depends on its kernel. How long
references take was not measured, so a sweep should also end in time where races take twice as long.
"""

from __future__ import annotations

import functools
import hashlib
import time
from dataclasses import dataclass, replace
from typing import Any

from tunefa.measure.bench import KernelRaceResult
from tunefa.measure.objective import Raced
from tunefa.spec import kernel as kernels
from tunefa.spec.trial import Config, Trial, identity
from tunefa.spec.workload import Workload

PEAK_FLOPS, BYTES_PER_S = 600e12, 4e12
SLOWER = {"cuda_sm90": 1.0, "gluon_sm90": 1.15, "triton": 1.4, "cuda_sm80": 2.0, "cudnn": 1.1}
"""By the end of a kernel's name: how many times as long its launches take."""
SPREAD = 0.25
"""The slowest config takes so much longer than the fastest, relatively."""
FLUSH_S = 0.15e-3
"""To overwrite the L2 cache before a launch."""
JUDGE_S, NEW_S = 0.05, 0.3
"""A trial besides its launches, and more if the workload is another one."""
JUDGED = 12
"""The launches of a trial."""
RETIME_S, RETIMED = 0.02, 5
"""To time a config again, besides its launches; and these."""
PROBE = 60.0
"""Inputs and a reference in fp32 take so many times as long as a launch."""
LOOK_EVERY, LEAST_ROUNDS, ROUNDS = 6, 12, 36
LOOK_S = 0.06
"""The statistics of a look."""
LEFT = 4
"""The racers that are left after the second look."""


def chance(text: str) -> float:
    """Returns a number from 0 to 1 that a text decides."""
    return hashlib.sha256(text.encode()).digest()[0] / 255.0


@functools.cache
def language(kernel: str) -> str:
    """Returns the language of a kernel."""
    return kernels.load(kernel).language


@functools.cache
def _base_s(kernel: str, workload: str) -> float:
    asked = Workload.parse(workload)
    slower = next((by for end, by in SLOWER.items() if kernel.endswith(end)), 1.5)
    part = 0.75 if asked.op == "bwd" else 1.0
    return slower * max(asked.flops / (part * PEAK_FLOPS), asked.io_bytes / BYTES_PER_S, 4e-6)


def launch_s(kernel: str, workload: str, config: Config) -> float:
    """Returns the seconds of one launch."""
    by = chance(f"{kernel} {workload} {identity(config)}")
    return _base_s(kernel, workload) * (1.0 + SPREAD * by)


@dataclass
class Device:
    """The bench of one GPU, which waits in place of a device."""

    workload: str = ""
    races: float = 1.0
    """Races take so many times as long."""

    def run(self, task: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        """Does what `tunefa.measure.measured.run_in_process` does, on the virtual clock."""
        (kernel, workload, _), _ = task
        if workload != self.workload:
            self.workload = workload
            time.sleep(NEW_S)
        begun = time.monotonic()
        found = getattr(self, f"_{method}")(kernel, workload, *arguments)
        if method.startswith("race"):
            time.sleep(max(0.0, self.races - 1.0) * (time.monotonic() - begun))
        return found

    def _judge(self, kernel: str, workload: str, trial: Trial, best_us: float) -> Trial:
        seconds = launch_s(kernel, workload, trial.config)
        time.sleep(JUDGE_S + JUDGED * (seconds + FLUSH_S))
        return replace(trial, error=1e-4, samples_us=(1e6 * seconds,) * 5)

    def _retime(self, kernel: str, workload: str, trial: Trial) -> Trial:
        seconds = launch_s(kernel, workload, trial.config)
        time.sleep(RETIME_S + RETIMED * (seconds + FLUSH_S))
        return replace(trial, samples_us=(*trial.samples_us, *(1e6 * seconds,) * RETIMED))

    def _race(
        self, kernel: str, workload: str, trials: list[Trial], default: Config | None, until: float,
        least_us: float,
    ) -> Raced:  # fmt: skip
        times = [launch_s(kernel, workload, each.config) for each in trials]
        kinds = 1 if Workload.parse(workload).batch > 1 else 2
        for _ in range(kinds):
            time.sleep(0.1 + PROBE * min(times) + sum(0.02 + 4 * each for each in times))
        _rounds([*times, times[0]], until)
        raced = [replace(each, error=1e-4, samples_us=(1e6 * seconds,) * 20)
                 for each, seconds in zip(trials, times, strict=True)]  # fmt: skip
        best = min(raced, key=lambda each: each.samples_us[0])
        return Raced(raced, best, {"noise_floor": 0.001})

    def _race_kernels(
        self, kernel: str, workload: str, own: Trial, rivals: list[tuple[str, Trial]], until: float,
        least_us: float,
    ) -> KernelRaceResult:  # fmt: skip
        racers = [(kernel, own), *rivals]
        times = [launch_s(name, workload, each.config) for name, each in racers]
        _rounds([*times, times[0]], until)
        best = min(range(len(times)), key=lambda place: times[place])
        return KernelRaceResult(racers[best][0], {"noise_floor": 0.001})


def _rounds(times: list[float], until: float) -> None:
    """Waits for the rounds of a race."""
    time.sleep(3 * sum(each + FLUSH_S for each in times))  # prepared, and warmed up
    for done in range(LOOK_EVERY, ROUNDS + 1, LOOK_EVERY):
        left = sorted(times)[: LEFT if done > LEAST_ROUNDS else len(times)]
        time.sleep(LOOK_EVERY * sum(each + FLUSH_S for each in left) + LOOK_S)
        if done >= LEAST_ROUNDS and time.monotonic() >= until:
            return
