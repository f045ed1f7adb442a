"""The sampler of a search without a device, in which the model that ranks configs before compiling
also gives their final times: only what the compiler says of their registers can change the order.

So it proposes only configs that may become the recommendation, the largest expected gain first. A
config may if the least time that it could be predicted to take (`costmodel.before_compiling`) beats
the best one so far, and no config has failed that compiles to the same binary. Where nothing is
left, the rest is decided without compiling it. On 45 landscapes of an H200, with the resources that
were recorded, this compiled 1 config in the median and 10 at most, of up to 5,140 (18 with a model
that has learned nothing), and always found the best that compiling all of them would have.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study
from optuna.trial import FrozenTrial
from scipy.special import ndtr

from tunefa.search.sampler import FeasibleSampler
from tunefa.search.strategy import SearchProblem

_GAIN = 0.005
"""A config that is faster by less, relatively, changes no decision: every model errs by more."""
_LONGEST_US = 1e30
"""The time of a config that cannot run: longer than any, but finite."""
_EXACT = 1e-9
"""The least standard deviation of a log time."""


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
        self._to_beat = math.log(problem.to_beat_us)
        numbers = {binary: number for number, binary in enumerate(dict.fromkeys(problem.binaries))}
        self._binaries = np.array([numbers[binary] for binary in problem.binaries])

    def is_settled(self) -> bool:
        """Whether no untried config could change the decision, as far as is known now."""
        return not (self._waiting() or self._may_win().any())

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """Returns the next known config; after them, the config of the largest expected gain."""
        if waiting := self._waiting():
            return waiting[0]
        (expected, sd), may_win, best = self._believed(), self._may_win(), self._best()
        if not may_win.any():  # asked all the same
            may_win = self.candidates.untried
        gain = -expected
        if math.isfinite(best):
            z = (best - expected) / sd
            gain = sd * (z * ndtr(z) + np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi))
        return int(np.where(may_win, gain, -np.inf).argmax())

    def _waiting(self) -> list[int]:
        return [place for place in self._first if self.candidates.untried[place]]

    def _may_win(self) -> NDArray[np.bool_]:
        """Says of each config whether it is untried and could become the recommendation. Siblings
        of a binary in progress wait for it."""
        expected, sd = self._believed()
        faster = expected - 2 * sd < self._best() - _GAIN
        found = self.candidates
        failed = [place for place, us in found.times.items() if us is None]
        barred = np.isin(self._binaries, self._binaries[[*failed, *found.in_progress]])
        may: NDArray[np.bool_] = found.untried & faster & ~barred
        return may

    def _believed(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The expected log time of each config and its sd, from the trials so far.

        The registers of a binary are known when one of its configs is compiled.
        """
        found, expected, sd = self.candidates, self._expected.copy(), self._sd.copy()
        right = {place: us for place, us in found.times.items() if us is not None}
        for place, time_us in right.items():
            same = self._binaries == self._binaries[place]
            off = math.log(time_us) - self._expected[place]
            expected[same], sd[same] = self._expected[same] + off, _EXACT
        return expected, sd

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
