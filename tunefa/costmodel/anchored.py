"""Trials whose times are predicted and anchored: their order, and the decision between them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tunefa.costmodel.anchor import Anchor
from tunefa.costmodel.decision import SURE, Decision, Expected, compared, comparison_sd, decide
from tunefa.costmodel.estimate import estimate
from tunefa.costmodel.ranking import rank_us
from tunefa.errors import TunefaError
from tunefa.spec import space as spaces
from tunefa.spec.arch import Arch
from tunefa.spec.default import Default
from tunefa.spec.trial import Config, Trial, time_us


def judged(anchor: Anchor, kernel: str, trial: Trial) -> Trial:
    """Returns a right trial of a kernel with the time that it is expected to take; any other
    trial as it is."""
    if trial.outcome != "ok" or trial.resources is None:
        return trial
    made = anchor.expected(kernel, trial.config, trial.resources)
    return replace(trial, predicted_us=made.time_us, predicted_sd=made.sd)


def expected(anchor: Anchor, kernel: str, trial: Trial) -> Expected:
    """Returns the expectation for a trial of a kernel that was predicted with this anchor.

    A config that spills counts as slower (see `rank_us`), unless it is known to be good.
    """
    made = anchor.expected(kernel, trial.config, trial.resources)
    return replace(made, time_us=time_us(trial) if made.source else rank_us(trial))


def ranked(anchor: Anchor, tried: Sequence[tuple[str, Trial]]) -> list[tuple[str, Trial]]:
    """Returns trials of kernels, the one to recommend first: those that beat the best known
    config beyond the error, by how much they do; then the known ones; then others by time."""
    best = _best_of(anchor, tried)
    places = {key: place for place, key in enumerate(anchor.known_by_key)}

    def preference(each: tuple[str, Trial]) -> tuple[int, float]:
        made = expected(anchor, *each)
        if made.key == best.key:
            return 1, 0.0
        if (margin := compared(best, made).margin) > 0.0:
            return 0, -margin
        return (2, places[made.key]) if made.key in places else (3, made.time_us)

    return sorted(tried, key=preference)


def decision(
    anchor: Anchor, winner: tuple[str, Trial], tried: Sequence[tuple[str, Trial]]
) -> Decision:
    """Returns how the winner of a search compares with the best known config; if it is that
    one, how the nearest of the other right trials does."""
    best, won = _best_of(anchor, tried), expected(anchor, *winner)
    if won.key != best.key:
        return compared(best, won)
    right = (expected(anchor, *each) for each in tried if each[1].outcome == "ok")
    return replace(decide(best, right), winner=best)


def _best_of(anchor: Anchor, tried: Sequence[tuple[str, Trial]]) -> Expected:
    """The best known config, with the time that its trial says if it was compiled."""
    best = anchor.recommended
    assert best is not None  # callers have an anchor only where something is known
    found = (expected(anchor, *each) for each in tried if each[1].outcome == "ok")
    return next((each for each in found if each.key == best.key), best)


def to_beat_us(anchor: Anchor, kernel: str, config: Config) -> float:
    """Returns the expected time in us below which a config of a kernel that is not known replaces
    the best known one. `config` is any of the kernel: the errors of all are alike."""
    best = anchor.recommended
    if best is None:
        return math.inf
    own_sd = estimate(anchor.cases[kernel], config).comparison_sd
    rival = replace(anchor.expected(kernel, config), own_sd=own_sd)
    return best.time_us * math.exp(-SURE * comparison_sd(best, rival))


def without_anchor(arch: Arch, passed_over: bool = False) -> str:
    """Returns the decision, in words, of a search without a device where nothing is known.
    `passed_over` says that a config which spills registers has a shorter time (see `rank_us`)."""
    which = ", of those that spill no registers" if passed_over else ""
    if any(default.is_known_on(arch) for default in _all_defaults()):
        return f"the fastest by the model{which}: no config is known to be good for such workloads"
    never = f"the model was never compared with a device of {arch.name}"
    return f"the fastest by the model{which}; {never}"


def _all_defaults() -> Iterator[Default]:
    """Yields the defaults of all spaces that can be read."""
    for name in spaces.names():
        with contextlib.suppress(TunefaError):
            yield from spaces.load(name).defaults
