"""Races of launches that a stopwatch times, and what is said of their winner.

`tunefa.measure.race` has the statistics. What is timed here passed a check before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tunefa.measure import race, timing
from tunefa.measure.monitor import Monitor
from tunefa.measure.objective import Raced
from tunefa.measure.race import Decision, Interval, Race
from tunefa.measure.timing import AnyStopwatch
from tunefa.spec.trial import Config, Trial, time_us

SCREEN_SAMPLES = 5
FIRST_SAMPLES = 2
"""Samples after which a screening may end. Compilers keep the host's cores busy, so the host may
pause between the stopwatch's start and the launch; a single sample could include such a pause."""
HOPELESS = 2.0
"""A config that takes this many times the best time so far is not sampled further."""
TRIES = 2
"""Races that are tried on a disturbed device before the last is reported as not certified."""
POSSIBLE = 0.8
"""A median below this part of the time that the memory needs is wrong. Right ones may be a little
below that time: products that share a name may have a faster memory than the one that is known."""


def run_races(
    stopwatch: AnyStopwatch,
    launches: Sequence[timing.BoundLaunch],
    pinned: frozenset[int],
    until: float,
    least_us: float = 0.0,
) -> tuple[Race, Monitor, str | None]:
    """Races prepared launches, the last of which is the first one again, until `time.monotonic` is
    `until`. Returns the last race, its monitor, and why it is not certified; None if it is.

    The device needs `least_us` at its peak rates: a race with much shorter times is not certified.
    """
    tries = 0
    while tries < TRIES:
        run, watch = _run_race(stopwatch, launches, pinned, until)
        tries += 1
        why = watch.disturbance or _impossible(run, least_us)
        if why is None or time.monotonic() >= until:
            break
    return run, watch, why and f"{why} in {_races(tries)}"


def _impossible(run: Race, least_us: float) -> str | None:
    """Says that the shortest median is too short for the device; None if it is not."""
    shortest_us = run.median_us(run.leader)
    if shortest_us >= POSSIBLE * least_us:
        return None
    return (
        f"a median of {shortest_us:.1f} us, which cannot be, as the memory alone needs "
        f"{least_us:.1f} us,"
    )


def _run_race(
    stopwatch: AnyStopwatch,
    launches: Sequence[timing.BoundLaunch],
    pinned: frozenset[int],
    until: float,
) -> tuple[Race, Monitor]:
    """Races prepared launches, the last of which is the first one again."""
    with Monitor() as watch:

        def time_us(order: Sequence[int]) -> list[float]:
            samples = stopwatch.once_us([launches[racer] for racer in order])
            watch.read()
            return samples

        time_us(range(len(launches)))  # a warm-up, which is no round
        return race.run(len(launches), pinned, time_us, until), watch


def screened(
    stopwatch: AnyStopwatch, launch: timing.BoundLaunch, best_us: float
) -> tuple[float, ...]:
    """Returns a few samples of a prepared launch, in us; only the first ones where it is much
    slower than `best_us`."""
    times = stopwatch.times_us([launch] * FIRST_SAMPLES)
    if min(device_us for device_us, _ in times) < HOPELESS * best_us:
        times += stopwatch.times_us([launch] * (SCREEN_SAMPLES - FIRST_SAMPLES))
    # Compilers run at the same time: the host's shortest time is the one that they disturb
    # least.
    host_us = min(host_us for _, host_us in times)
    mode = stopwatch.mode
    return tuple(timing.latency_us(mode, device_us, host_us) for device_us, _ in times)


def samples_of(run: Race, racer: int) -> tuple[float, ...]:
    """Returns the latencies of a racer, in us, of the rounds that timed it."""
    return tuple(row[racer] for row in run.samples_us if not math.isnan(row[racer]))


def decided(raced: list[Trial], run: Race, default: Config | None, refused: str | None) -> Raced:
    """The result of a race of these trials; `refused` says why it is not certified, None if it is.

    Where it is not certified the default wins, or the race's leader if there is no default.
    """
    place = next((i for i, trial in enumerate(raced) if trial.config == default), None)
    decision = race.decide(run, place, footprint_of(raced))
    if refused is not None:
        decision = _uncertified(run, decision, place, refused)
    certificate = _certificate(raced, run, decision)
    if refused is not None:
        certificate["refused"] = refused
        certificate.get("runner_up", {}).pop("slower_by", None)
    others = (i for i in range(len(raced)) if i != decision.winner)
    ranked = [decision.winner, *sorted(others, key=run.median_us)]
    return Raced([raced[i] for i in ranked], raced[decision.winner], certificate)


def footprint_of(raced: Sequence[Trial]) -> Callable[[int], tuple[int, ...]]:
    """Returns a sort key for racers that are equally fast: shared memory first, then registers."""

    def footprint(racer: int) -> tuple[int, ...]:
        used = raced[racer].resources
        return (used.smem_bytes or 0, used.registers or 0, racer) if used else (0, 0, racer)

    return footprint


def _uncertified(run: Race, decision: Decision, default: int | None, why: str) -> Decision:
    """A decision without a claim: the default wins, or the leader if there is no default."""
    if default is None:
        return replace(decision, why=f"the leader is kept, not certified: {why}", gain=None)
    others = sorted(set(range(run.twin)) - {default}, key=run.median_us)
    return replace(
        decision,
        winner=default,
        why=f"the default is kept: {why}",
        gain=None,
        runner_up=others[0] if others else None,
    )


def _races(count: int) -> str:
    return "the race" if count == 1 else f"{count} races"


def _certificate(raced: list[Trial], run: Race, decision: Decision) -> dict[str, Any]:
    """The statistics of a race as plain data: relative differences with 95 % intervals."""
    certificate: dict[str, Any] = {
        "decision": decision.why,
        "gain_over_default": plain(decision.gain),
        "noise_floor": round(decision.noise_floor, 5),
        "rounds": len(run.samples_us),
        "racers": run.racers - 1,
        "dropped": len(run.dropped),
    }
    second = decision.runner_up
    if second is not None:
        certificate["runner_up"] = {
            "config": dict(raced[second].config),
            "slower_by": plain(run.difference(second, decision.winner)),
        }
    return certificate


def plain(interval: Interval | None) -> dict[str, float] | None:
    """Returns an interval as plain data."""
    if interval is None:
        return None
    return {name: round(value, 5) for name, value in vars(interval).items()}


def without_race(finalists: list[Trial], reason: str, checked: bool = True) -> Raced:
    """The result where a race could not be run: the best right trial wins, and is not certified.

    With `checked`, only trials that passed a check can win. `reason` says why there was no race.
    """
    right = [t for t in finalists if t.outcome == "ok" and not (checked and t.error is None)]
    best = min(right, key=time_us, default=None)
    return Raced(finalists, best, {"refused": f"the race was lost: {reason}"} if best else None)
