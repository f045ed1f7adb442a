"""What a search does unless told otherwise: known good configs, the model's favourites, then TPE.

Where the budget covers every feasible config, all are tried, the most promising first. Otherwise
the model's order and Optuna's TPE take turns: the model is right about most configs from the start,
TPE learns where it is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from tunefa.strategies import Problem, identity, tpe
from tunefa.trial import Config, Trial

_FAVOURITES = 12
"""The model's best that are tried before TPE has its first turn."""


class Strategy:
    """Seeds, favourites, then turns."""

    def __init__(self, problem: Problem) -> None:
        order = sorted(range(len(problem.configs)), key=lambda i: problem.expected_us[i])
        self._expected = iter([problem.configs[i] for i in order])
        self._proposed: set[tuple[object, ...]] = set()
        exhaustive = problem.trials is not None and problem.trials >= len(problem.configs)
        self._learner = None if exhaustive else tpe.Strategy(problem)
        feasible = {identity(config): config for config in problem.configs}
        first = (feasible.get(identity(config)) for config in problem.first)
        self._queue = self._sequence([config for config in first if config is not None])

    def ask(self) -> Config | None:
        """The next config that was not proposed yet."""
        config = next(self._queue, None)
        if config is not None:
            self._proposed.add(identity(config))
        return config

    def tell(self, trial: Trial) -> None:
        """Passes it on to TPE."""
        if self._learner is not None:
            self._learner.tell(trial)

    def _sequence(self, first: list[Config]) -> Iterator[Config]:
        for config in first:
            if identity(config) not in self._proposed:
                yield config
        for _ in range(_FAVOURITES):
            yield from self._favourite()
        while True:
            turn = list(self._favourite())
            yield from turn
            learned = self._learner.ask() if self._learner is not None else None
            while learned is not None and identity(learned) in self._proposed:
                assert self._learner is not None
                learned = self._learner.ask()  # one that is still being tried
            if learned is not None:
                yield learned
            if not turn and learned is None:
                return

    def _favourite(self) -> Iterator[Config]:
        """The model's best that is left, if any."""
        for config in self._expected:
            if identity(config) not in self._proposed:
                yield config
                return
