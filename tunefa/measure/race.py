"""Who is fastest, decided by paired comparison: interleaved rounds, dropouts, and a noise floor.

Near the top, configs differ by less than a device drifts between two measurements, so one figure
each decides nothing. Here every round times all survivors one after the other, in an order that
rotates; what is compared are the ratios within a round, in which clocks and temperature cancel. One
racer runs twice under two names (A/A): the ratio of the two is the noise floor, which a difference
must exceed to mean anything.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

LOOK_EVERY = 6
"""Rounds between two looks at the standing; fewer would test the same few numbers again."""
MAX_ROUNDS = 60
MIN_LOOKS = 2
"""Looks that a race without time is given: of one, the bootstrap would say too little."""
ENOUGH = 0.003
"""Half-width of the leader's intervals, in log ratio, at which more rounds change no decision."""
DROP_LEVEL = 0.01
"""Chance of dropping a racer that is no slower, over the whole race (Bonferroni over racers)."""
CONFIDENCE = 0.95
_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A relative difference with its bootstrap interval: 0.02 is 2 % slower than the reference."""

    estimate: float
    low: float
    high: float


@dataclass
class Race:
    """Racers by index, their latencies by round, and who is still in.

    The last racer is the first one again, under another name; both, and those in `pinned` (the
    default, say), are timed in every round to the end.
    """

    racers: int
    """How many, the second name of the first included."""
    pinned: frozenset[int] = frozenset()
    samples_us: list[list[float]] = field(default_factory=list)
    """One list per round; NaN where a racer was out."""
    dropped: dict[int, int] = field(default_factory=dict)
    """Racer -> the round after which it was out."""

    @property
    def twin(self) -> int:
        """The second name of racer 0."""
        return self.racers - 1

    @property
    def noise_floor(self) -> float:
        """The relative difference that the A/A pair could pretend to have."""
        pair = self.difference(self.twin, 0)
        return max(abs(pair.low), abs(pair.high))

    @property
    def survivors(self) -> list[int]:
        """Who is still in, by index."""
        return [racer for racer in range(self.racers) if racer not in self.dropped]

    @property
    def leader(self) -> int:
        """The survivor with the lowest median; never the twin."""
        return min((r for r in self.survivors if r != self.twin), key=self.median_us)

    def add_round(self, time_us: Callable[[Sequence[int]], Sequence[float]]) -> None:
        """Times every survivor once, beginning one further on than the round before."""
        survivors = self.survivors
        turn = len(self.samples_us) % len(survivors)
        order = survivors[turn:] + survivors[:turn]
        row = [math.nan] * self.racers
        for racer, sample in zip(order, time_us(order), strict=True):
            row[racer] = sample
        self.samples_us.append(row)

    def drop_losers(self) -> None:
        """Takes out each racer that is slower than the leader beyond doubt."""
        leader = self.leader
        staying = {leader, 0, self.twin} | self.pinned
        level = 1.0 - DROP_LEVEL / self.racers
        for racer in self.survivors:
            if racer not in staying and self.difference(racer, leader, level).low > 0.0:
                self.dropped[racer] = len(self.samples_us)

    def difference(self, racer: int, reference: int, confidence: float = CONFIDENCE) -> Interval:
        """How much slower `racer` is than `reference`, over the rounds that have both."""
        rounds = np.array(self.samples_us)
        ratios = np.log(rounds[:, racer] / rounds[:, reference])
        return interval(ratios[~np.isnan(ratios)], confidence)

    def median_us(self, racer: int) -> float:
        """Median latency of a racer over the rounds it ran."""
        return float(np.nanmedian(np.array(self.samples_us)[:, racer]))

    def settled(self) -> bool:
        """Whether more rounds would change nothing: every survivor's interval is narrow."""
        leader = self.leader
        others = [racer for racer in self.survivors if racer != leader]
        widths = [self.difference(racer, leader) for racer in others]
        return all((width.high - width.low) / 2 < ENOUGH for width in widths)


def interval(log_ratios: NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval:
    """Median of the log ratios as a relative difference, with a percentile bootstrap interval.

    The median, because one round in which the device was disturbed must not decide. Source: Efron
    and Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3.
    """
    random = np.random.default_rng(0)  # the same samples give the same interval
    picks = random.integers(0, len(log_ratios), (_RESAMPLES, len(log_ratios)))
    medians = np.median(log_ratios[picks], axis=1)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(medians, [tail, 1.0 - tail])
    return Interval(*(math.expm1(float(x)) for x in (np.median(log_ratios), low, high)))


def run(
    racers: int,
    pinned: frozenset[int],
    time_us: Callable[[Sequence[int]], Sequence[float]],
    until: float = math.inf,
) -> Race:
    """Races until the survivors are told apart, or cannot be; `time_us` times them in order, in us.

    `racers` counts the second name of racer 0, which comes last; at least 2. At `until`, by
    `time.monotonic`, the rounds that there are decide, once there are `MIN_LOOKS` looks' worth.
    """
    race = Race(racers, pinned)
    while len(race.samples_us) < MAX_ROUNDS:
        for _ in range(LOOK_EVERY):
            race.add_round(time_us)
        race.drop_losers()
        enough = len(race.samples_us) >= MIN_LOOKS * LOOK_EVERY
        if race.settled() or (enough and time.monotonic() >= until):
            break
    return race


@dataclass(frozen=True)
class Decision:
    """Who is kept, and on what grounds."""

    winner: int
    why: str
    """One sentence."""
    gain: Interval | None
    """How much slower the default is than the winner; None without a default, or if it won."""
    noise_floor: float
    runner_up: int | None
    """The best of the others, by median."""


def decide(
    race: Race, default: int | None, footprint: Callable[[int], tuple[int, ...]]
) -> Decision:
    """The leader, unless others are as fast: then the default, else the one of smallest footprint.

    As fast is who is within the noise floor of the leader, or not slower beyond doubt. A gain over
    the default whose lower bound is not above the noise floor is none: the default is kept.
    """
    floor, leader = race.noise_floor, race.leader
    own = [racer for racer in race.survivors if racer != race.twin]
    slower = {racer: race.difference(racer, leader) for racer in own if racer != leader}
    tied = [leader] + [r for r, by in slower.items() if by.low <= 0.0 or by.estimate <= floor]
    winner = min(tied, key=footprint)
    why = f"the fastest of {race.racers - 1}"
    if len(tied) > 1:
        why = f"the smallest of {len(tied)} that are equally fast"
    gain = None
    if default is not None and winner != default:
        gain = race.difference(default, winner)
        if default in tied or gain.low <= floor:
            why = (
                f"the default is kept: a gain of {gain.estimate:.1%} (at least {gain.low:.1%}) is "
                f"not above the noise floor of {floor:.1%}"
            )
            winner, gain = default, None
    elif winner == default:
        why = f"the default is {why}"
    others = sorted(set(range(race.twin)) - {winner}, key=race.median_us)
    return Decision(winner, why, gain, floor, others[0] if others else None)
