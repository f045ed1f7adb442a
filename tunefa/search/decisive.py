"""The sampler of a search without a device, in which the model that ranks configs before compiling
also gives their final times: only what the compiler says of their registers can change the order.

So it proposes only configs that may become the recommendation, the largest expected gain first. A
config may if the least time that it could be predicted to take (`costmodel.before_compiling`) beats
the best one so far, and no config has failed that compiles to the same binary. Where nothing is
left, the rest is decided without compiling it.

The configs of a kernel surprise alike: where the compiler spills more than expected in some, it
will in others. So what is believed of all moves with the trials, and gets surer. On 51 landscapes
of an H200 and an H100, with the resources that were recorded, this compiled 1 config in the median
and 10 at most, of up to 5,140, and found the best that compiling all would have. With a model that
has learned nothing it compiled 11 at most (18 if surprises were not shared), and at two landscapes
found one that is 0.6 % slower by that model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study

from tunefa.search.sampler import FeasibleSampler
from tunefa.search.strategy import SearchProblem

_GAIN = 0.005
"""A config that is faster by less, relatively, changes no decision: every model errs by more."""
_LONGEST_US = 1e30
"""The time of a config that cannot run: longer than any, but finite."""
_EXACT = 1e-9
"""The least standard deviation of a log time."""
_ALIKE = 0.2
"""The correlation of the surprises of two configs of a kernel. It is 0.30 in 11 landscapes with a
model that has learned nothing, 0.46 in 9 with the shipped ones; but with 0.35 the search ended at
one of them 1.2 % behind the best."""
_MOST_SURPRISE = 3.0
"""The standard deviations that a surprise counts at most: the spills of some configs cost much
more."""


class _Belief(NamedTuple):
    """The log times that configs may take, an array each."""

    expected: NDArray[np.float64]
    sd: NDArray[np.float64]
    least: NDArray[np.float64]


class Decisive(FeasibleSampler):
    """Proposes the known configs, then those that could change the decision."""

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        found = (self.candidates.find(config) for config in problem.first)
        self._first = [place for place in found if place is not None]
        expected = np.asarray(problem.expected_us, dtype=float)
        runs = (expected > 0) & (expected < _LONGEST_US)
        self._expected: NDArray[np.float64] = np.log(np.where(runs, expected, _LONGEST_US))
        # The least time is two standard deviations below what is expected.
        least = np.log(np.where(runs, np.asarray(problem.least_us, dtype=float), _LONGEST_US))
        self._sd = np.maximum((self._expected - least) / 2.0, _EXACT)
        self._least: NDArray[np.float64] = least
        self._to_beat = math.log(problem.to_beat_us)
        numbers = {binary: number for number, binary in enumerate(dict.fromkeys(problem.binaries))}
        self._binaries = np.array([numbers[binary] for binary in problem.binaries])

    def is_settled(self) -> bool:
        """Whether no untried config could change the decision, as far as is known now."""
        return not (self._waiting() or self._may_win().any())

    def choose(self, study: Study, number: int) -> int:
        """Returns the next known config; after them, the config of the largest expected gain."""
        if waiting := self._waiting():
            return waiting[0]
        may_win, best = self._may_win(), self._best()
        if not may_win.any():  # asked all the same
            may_win = self.candidates.untried
        gain = self._gain(best) if math.isfinite(best) else -self._believed().expected
        return int(np.where(may_win, gain, -np.inf).argmax())

    def hoped_gain(self, best_us: float) -> float:
        """The largest expected gain of a config that could change the decision."""
        may_win = self._may_win()
        if not may_win.any() or not 0.0 < best_us < math.inf:
            return 0.0
        return float(self._gain(math.log(best_us))[may_win].max())

    def _gain(self, best: float) -> NDArray[np.float64]:
        """The amount by which each log time is expected to be below `best`."""
        from scipy.special import ndtr  # late: few searches need it, and it takes 0.2 s

        believed = self._believed()
        z = (best - believed.expected) / believed.sd
        gain: NDArray[np.float64] = believed.sd * (
            z * ndtr(z) + np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        )
        return gain

    def _waiting(self) -> list[int]:
        return [place for place in self._first if self.candidates.untried[place]]

    def _may_win(self) -> NDArray[np.bool_]:
        """Says of each config whether it is untried and could become the recommendation. Siblings
        of a binary in progress wait for it."""
        faster = self._believed().least < self._best() - _GAIN
        found = self.candidates
        failed = [place for place, us in found.times.items() if us is None]
        barred = np.isin(self._binaries, self._binaries[[*failed, *found.in_progress]])
        may: NDArray[np.bool_] = found.untried & faster & ~barred
        return may

    def _believed(self) -> _Belief:
        """The belief about each config after the trials so far, never less than its least time.

        The registers of a binary are known when one of its configs is compiled.
        """
        right = {place: us for place, us in self.candidates.times.items() if us is not None}
        moved, left = _shared_surprise(self._surprises(right))
        expected, sd = self._expected + moved * self._sd, np.maximum(left * self._sd, _EXACT)
        least = np.maximum(expected - 2.0 * sd, self._least)
        for place, time_us in right.items():
            same = self._binaries == self._binaries[place]
            off = math.log(time_us) - self._expected[place]
            expected[same] = least[same] = self._expected[same] + off
            sd[same] = _EXACT
        return _Belief(expected, sd, least)

    def _surprises(self, right: Mapping[int, float]) -> list[float]:
        """The surprise of each binary: standard deviations by which it is slower than expected."""
        found: dict[int, float] = {}
        for place, time_us in right.items():
            if self._sd[place] > _EXACT:
                off = (math.log(time_us) - self._expected[place]) / self._sd[place]
                limited = max(-_MOST_SURPRISE, min(_MOST_SURPRISE, off))
                found.setdefault(int(self._binaries[place]), limited)
        return list(found.values())

    def _best(self) -> float:
        """The log time that a config must beat: that of the best so far, and that of the problem
        unless everything has failed, the best known config perhaps, too. Configs in progress are
        taken to work as expected, but for a single one: it may fail, or never end."""
        found = self.candidates
        told = [*found.times.values(), *self.others]
        right = [math.log(time_us) for time_us in told if time_us is not None]
        if len(found.in_progress) > 1:
            right += [float(self._expected[place]) for place in found.in_progress]
        return math.inf if told and not right else min([self._to_beat, *right])


def _shared_surprise(surprises: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and the standard deviation of the surprise of a config that is not compiled
    yet, both in its standard deviations.

    A surprise is the sum of a part that all configs share, with the variance `_ALIKE`, and one of
    its own, both normal; the variances add up to 1.
    """
    own = 1.0 - _ALIKE
    weight = _ALIKE / (own + len(surprises) * _ALIKE)
    return weight * sum(surprises), math.sqrt(own + weight * own)
