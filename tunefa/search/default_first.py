"""The rule that a search begins with the kernel's default and other configs that are known to be
good, whatever its strategy."""

from __future__ import annotations

from collections.abc import Sequence

from tunefa.search.strategy import Strategy
from tunefa.spec.trial import Config, Trial, identity


class DefaultFirst:
    """A strategy that proposes some configs, such as the kernel's default, before everything else.

    So every search that tries anything knows the default, or in a search without a device the best
    known config, whatever its strategy and budget.
    """

    def __init__(self, strategy: Strategy, first: Sequence[Config]) -> None:
        self._strategy = strategy
        self._left = list(first)
        self._first = {identity(config) for config in first}

    def ask(self, compiled: bool = False) -> Config | None:
        """Returns the first configs, then what the strategy proposes, but none of them again."""
        if self._left and not compiled:
            return self._left.pop(0)
        config = self._strategy.ask(compiled)
        while config is not None and identity(config) in self._first:
            config = self._strategy.ask(compiled)
        return config

    def tell(self, trial: Trial) -> None:
        """Passes the trial on to the strategy."""
        self._strategy.tell(trial)
