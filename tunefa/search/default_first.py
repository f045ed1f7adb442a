"""The rule that a search begins with the kernel's default, whatever its strategy."""

from __future__ import annotations

from tunefa.search.strategy import Strategy
from tunefa.spec.trial import Config, Trial, identity


class DefaultFirst:
    """A strategy that proposes the kernel's default before everything else.

    So every search that tries anything knows the default, whatever its strategy and budget.
    """

    def __init__(self, strategy: Strategy, default: Config) -> None:
        self._strategy, self._default = strategy, default
        self._proposed = False

    def ask(self) -> Config | None:
        """Returns the default, then what the strategy proposes; the default no second time."""
        if not self._proposed:
            self._proposed = True
            return self._default
        config = self._strategy.ask()
        while config is not None and identity(config) == identity(self._default):
            config = self._strategy.ask()
        return config

    def tell(self, trial: Trial) -> None:
        """Passes the trial on to the strategy."""
        self._strategy.tell(trial)
