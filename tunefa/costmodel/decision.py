"""Decides whether a config replaces the best one that is known.

A model errs most where it promises most: of many configs the one with the least predicted time is
often its largest error. So a config replaces one that is known to be good only if its expected gain
exceeds the error of the comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tunefa.spec.trial import Config, identity
from tunefa.store.record import Record

SURE = 2.5
"""The standard deviations of the comparison that a config's gain must exceed if it is not known to
be good. One of hundreds is chosen, so its error is a large one. The learned models lose nothing
against the known config on 51 recorded landscapes from 1 on (`python -m benchmarks.anchored`). But
where nothing was learned of a kernel the analytic model decides, and it takes a config with 2 that
is 85 % slower, on one landscape of 45; with 2.5 it loses nothing either."""
KNOWN_SURE = 1.0
"""The same for a config that is known to be good. Those are few, so the fastest of them by the
model is rarely its largest error; but the nearest record won where others were tried, too."""


@dataclass(frozen=True)
class Expected:
    """The time that one config is expected to take on a workload, and how sure that is."""

    kernel: str
    config: Config
    time_us: float
    """Infinity where it cannot run, or no model says how long it takes."""
    level_sd: float
    """The standard deviation of the logarithm that all configs of the kernel have in common."""
    own_sd: float
    """The standard deviation of the logarithm that is the config's own."""
    source: str = ""
    """Words for a config that is known to be good: where it was measured. Empty for any other."""
    sure: float = SURE
    """The standard deviations of the comparison that its gain over the best known config must
    exceed."""
    record: Record | None = None
    """The record that a known config was taken from; None for a default."""

    @property
    def sd(self) -> float:
        """The standard deviation of log(measured time / `time_us`)."""
        return math.hypot(self.level_sd, self.own_sd)

    @property
    def key(self) -> tuple[str, tuple[object, ...]]:
        """Equal for equal configs of one kernel."""
        return self.kernel, identity(self.config)


@dataclass(frozen=True)
class Decision:
    """The config to recommend, and how it compares with the best known one."""

    winner: Expected
    known: Expected
    """The best known config."""
    gain: float
    """log(time of the known config / time of the winner); where the known config won, the same of
    its nearest rival, and minus infinity without rivals."""
    error: float
    """The standard deviations of that logarithm which the gain must exceed (`Expected.sure`)."""

    @property
    def margin(self) -> float:
        """The logarithm by which the gain exceeds the error."""
        return self.gain - self.error

    @property
    def is_kept(self) -> bool:
        """Whether the known config is the winner."""
        return self.winner.key == self.known.key

    @property
    def reason(self) -> str:
        """The decision in one sentence."""
        known = self.known.source or f"the default of {self.known.kernel}"
        if self.is_kept and math.isinf(self.gain):
            return f"{known}: no other config was compared with it"
        error = f"{math.expm1(self.error):.0%}"
        if self.is_kept:
            return f"the model sees nothing that beats {known} beyond its error of {error}"
        if self.margin <= 0.0:
            return f"the best by the model of what is right: {known} is not among it"
        faster = f"{math.expm1(self.gain):.0%}"
        return f"expected {faster} faster than {known}, beyond the comparison's error of {error}"

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for a record's certificate.

        `gain` and `error` are relative: 0.06 is 6 %. `gain` is left out where nothing was compared.
        """
        known = {
            "kernel": self.known.kernel,
            "config": dict(self.known.config),
            "source": self.known.source,
            "time_us": self.known.time_us,
            "sd": self.known.sd,
        }
        compared = {} if math.isinf(self.gain) else {"gain": math.expm1(self.gain)}
        return {
            "decision": self.reason,
            "known": known,
            **compared,
            "error": math.expm1(self.error),
            "kept": self.is_kept,
        }


def decide(known: Expected, rivals: Iterable[Expected]) -> Decision:
    """Returns the known config, or the rival that is faster beyond the error of the comparison.

    A rival must be faster by more than `Expected.sure` standard deviations of the logarithm of the
    ratio of the two times; of several, the one that exceeds them by most wins. In a kernel its
    level has no part in that ratio. The errors of two kernels are independent: variances add.
    """
    nearest = Decision(known, known, -math.inf, 0.0)
    for rival in rivals:
        found = compared(known, rival)
        if rival.key != known.key and found.margin > nearest.margin:
            nearest = found
    return nearest if nearest.margin > 0.0 else replace(nearest, winner=known)


def compared(known: Expected, rival: Expected) -> Decision:
    """Returns the decision for a rival, by whatever it gains; its `margin` may be negative.

    It is minus infinity where one of the two has no expected time.
    """
    if not 0.0 < known.time_us < math.inf or not 0.0 < rival.time_us < math.inf:
        return Decision(rival, known, -math.inf, 0.0)
    gain = math.log(known.time_us / rival.time_us)
    return Decision(rival, known, gain, rival.sure * comparison_sd(known, rival))


def comparison_sd(a: Expected, b: Expected) -> float:
    """Returns the standard deviation of the logarithm of the ratio of two configs' times."""
    levels = () if a.kernel == b.kernel else (a.level_sd, b.level_sd)
    return math.hypot(a.own_sd, b.own_sd, *levels)
