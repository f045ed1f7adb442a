"""The problem that a strategy is given, and the interface of a strategy."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tunefa.spec.space import Parameter
from tunefa.spec.trial import Config, Trial

if TYPE_CHECKING:  # it brings NumPy
    from tunefa.search.compiled_before import Binaries


@dataclass(frozen=True)
class SearchProblem:
    """The configs to search, and what is known about them."""

    parameters: tuple[Parameter, ...]
    configs: Sequence[Config]
    """The feasible configs."""
    expected_us: Sequence[float]
    """The time of each config that the cost model expects before it is compiled. Without a device,
    it is longer for one that is expected to spill (`ranking.rank_us`)."""
    first: Sequence[Config]
    """Configs to try before all others: the default, and the winner of the nearest workload."""
    trials: int | None
    """The number of trials that the budget allows; None for a budget of seconds."""
    seed: int
    free_memory: Sequence[float] = ()
    """The free fraction of the fullest memory of an NPU that formulas expect of each config, below
    0 where it is exceeded. Empty for GPUs."""
    exact: bool = False
    """Whether the time of a right trial will be exactly its `expected_us`."""
    least_us: Sequence[float] = ()
    """The least time that each config may be predicted to take once it is compiled. Empty where a
    trial's time does not come from the model of `expected_us`, or comes from nothing else."""
    binaries: Sequence[Hashable] = ()
    """With `least_us`: equal for configs that compile to one binary, or fail alike."""
    to_beat_us: float = math.inf
    """With `least_us`: the time below which a config would be recommended, whatever the trials of
    this problem are; infinite if there is none."""
    compiled: Binaries | None = None
    """The binaries that there are, where searches share compilers; None if it makes no
    difference."""
    memories: tuple[str, ...] = ()
    """The memories whose excess the compiler of an NPU reports."""


class Strategy(Protocol):
    """Proposes configs to the search loop, and is told their trials."""

    def ask(self, compiled: bool = False) -> Config | None:
        """Returns a feasible config that it did not propose before; None if none is left to try.
        If `compiled`, one that needs no compiler and may be an improvement, see
        `SearchProblem.compiled`.

        After None it may be asked again when it was told another trial.
        """

    def tell(self, trial: Trial) -> None:
        """Learns from a trial. Trials may come in another order than their configs."""
