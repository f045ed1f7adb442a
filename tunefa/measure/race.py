"""A race decides which of several configs is fastest, by paired comparison in interleaved rounds.

The best configs differ by less than a device drifts between two measurements, so one time for each
decides nothing. Each round of a race times all racers that are left, one after the other, and
begins with another one than the round before. Only ratios within a round are compared, so that
changes of clock and temperature cancel. One racer runs twice under two names (an A/A test): the
ratio of the two is the noise floor, and smaller differences mean nothing. Every few rounds there is
a look at the standing, and racers that have lost beyond doubt are dropped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

LOOK_EVERY = 6
"""Rounds between two looks at the standing; with fewer, a look would have few new numbers."""
MAX_ROUNDS = 60
MIN_LOOKS = 2
"""Looks that a race has even if its time is over; the rounds of one are too few for a bootstrap."""
ENOUGH = 0.003
"""Half-width of the intervals against the leader, as a log ratio, at which a race may end."""
DROP_LEVEL = 0.01
"""Chance that a look drops some racer that is not slower (with Bonferroni's correction)."""
CONFIDENCE = 0.95
"""Confidence level of the intervals that are reported."""
_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A relative difference with its bootstrap interval; 0.02 means 2 % slower."""

    estimate: float
    low: float
    high: float


@dataclass
class Race:
    """The state of a race: the racers by index, their latencies by round, and which were dropped.

    The last racer is racer 0 again, under another name. These two and the racers in `pinned` (the
    default config, for example) are timed in every round.
    """

    racers: int
    """The number of racers, with the second name of racer 0."""
    pinned: frozenset[int] = frozenset()
    samples_us: list[list[float]] = field(default_factory=list)
    """One list per round; NaN for a racer that was dropped before."""
    dropped: dict[int, int] = field(default_factory=dict)
    """The number of rounds after which a racer was dropped, by racer."""

    @property
    def twin(self) -> int:
        """The index of the second name of racer 0."""
        return self.racers - 1

    @property
    def noise_floor(self) -> float:
        """The largest relative difference within the interval of the A/A pair."""
        pair = self.difference(self.twin, 0)
        return max(abs(pair.low), abs(pair.high))

    @property
    def survivors(self) -> list[int]:
        """The indices of the racers that were not dropped."""
        return [racer for racer in range(self.racers) if racer not in self.dropped]

    @property
    def leader(self) -> int:
        """The survivor with the lowest median; the twin is left out."""
        return min((r for r in self.survivors if r != self.twin), key=self.median_us)

    def add_round(self, time_us: Callable[[Sequence[int]], Sequence[float]]) -> None:
        """Times every survivor once, beginning with the one after the previous round's first."""
        survivors = self.survivors
        turn = len(self.samples_us) % len(survivors)
        rotated = survivors[turn:] + survivors[:turn]
        row = [math.nan] * self.racers
        for racer, sample in zip(rotated, time_us(rotated), strict=True):
            row[racer] = sample
        self.samples_us.append(row)

    def drop_losers(self) -> None:
        """Drops each racer that is slower than the leader beyond doubt."""
        leader = self.leader
        staying = {leader, 0, self.twin} | self.pinned
        level = 1.0 - DROP_LEVEL / self.racers
        for racer in self.survivors:
            if racer not in staying and self.difference(racer, leader, level).low > 0.0:
                self.dropped[racer] = len(self.samples_us)

    def difference(self, racer: int, reference: int, confidence: float = CONFIDENCE) -> Interval:
        """The slowdown of `racer` against `reference`, from the rounds that timed both."""
        rounds = np.array(self.samples_us)
        ratios = np.log(rounds[:, racer] / rounds[:, reference])
        return interval(ratios[~np.isnan(ratios)], confidence)

    def median_us(self, racer: int) -> float:
        """The median latency of a racer over the rounds that timed it."""
        return float(np.nanmedian(np.array(self.samples_us)[:, racer]))

    def settled(self) -> bool:
        """Whether every survivor's interval is so narrow that more rounds would change nothing."""
        leader = self.leader
        others = [racer for racer in self.survivors if racer != leader]
        widths = [self.difference(racer, leader) for racer in others]
        return all((width.high - width.low) / 2 < ENOUGH for width in widths)


def interval(log_ratios: NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval:
    """The median of the log ratios as a relative difference, with a percentile bootstrap interval.

    It is the median, because one round in which the device was disturbed must not decide. Source:
    Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3. The same samples
    give the same interval, which is that of `scipy.stats.bootstrap`; to import it takes a second.
    """
    count, tail = len(log_ratios), (1.0 - confidence) / 2
    drawn = np.random.default_rng(0).integers(0, count, (_RESAMPLES, count))
    medians = np.median(log_ratios[drawn], axis=-1)
    low, high = np.quantile(medians, (tail, 1.0 - tail))
    return Interval(*(math.expm1(float(x)) for x in (np.median(log_ratios), low, high)))


def run(
    racers: int,
    pinned: frozenset[int],
    time_us: Callable[[Sequence[int]], Sequence[float]],
    until: float = math.inf,
) -> Race:
    """Races until more rounds would change nothing, or `MAX_ROUNDS` are run.

    `racers` counts the second name of racer 0, which comes last, so it is at least 2. `time_us`
    times racers in the given order and returns us. When `time.monotonic` is `until`, the race ends
    at the next look, but not before `MIN_LOOKS`.
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
    """The winner of a race, and why it won."""

    winner: int
    why: str
    """One sentence."""
    gain: Interval | None
    """The slowdown of the default against the winner; None if there is no default, or it won."""
    noise_floor: float
    runner_up: int | None
    """The best of the other racers, by median."""


def decide(
    race: Race, default: int | None, footprint: Callable[[int], tuple[int, ...]]
) -> Decision:
    """Decides for the leader, unless others are as fast: then for the default if it is one of them,
    else for the smallest footprint.

    A racer is as fast as the leader if it is within the noise floor, or not slower beyond doubt.
    The default is also kept where the lower bound of the gain over it is not above the noise floor.
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
