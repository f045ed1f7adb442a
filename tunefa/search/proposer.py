"""The strategy of one kernel's part of a search, and the rule that says when that part ends."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from tunefa.costmodel import anchored
from tunefa.search import candidates, resume, strategies, study
from tunefa.search.budget import LOOK_S
from tunefa.search.default_first import DefaultFirst
from tunefa.search.parts import Part
from tunefa.search.state import SearchState
from tunefa.search.stopping import StoppingRule
from tunefa.search.stopping import patience as patience_of
from tunefa.search.strategy import Strategy
from tunefa.spec.trial import Config, Trial


def strategy(state: SearchState, part: Part, trials_left: int | None) -> Strategy:
    """The strategy, which begins with the default, and knows the trials of the search that this one
    continues."""
    request = state.request
    saved = study.Saved(state.storage, f"{state.journal.path.stem}-{part.name}")
    expected_us = part.expected_us
    if not expected_us and state.model is not None:
        expected_us = state.model.expected_us(part.case, part.feasible)
    problem = candidates.search_problem(
        request, part.case, part.feasible, part.known, trials_left, expected_us
    )
    if state.compiled is not None:
        sees = None if state.model is None else state.model.compiler_sees(part.case)
        problem = replace(problem, compiled=state.compiled.of(part.case, sees))
    if state.anchor is not None:  # its trials have the kernel's level too
        problem = candidates.at_level(problem, state.anchor.levels[part.name].factor)
    problem = replace(problem, to_beat_us=min(to_beat_us(state), _known_us(state, part)))
    own = strategies.create(request.strategy, problem, saved)
    state.studies[part.name] = own
    made = DefaultFirst(own, part.first) if part.first else own
    return resume.Continued(made, part.tried)


def stopping_rule(state: SearchState, part: Part) -> StoppingRule:
    """The rule that says when to stop the search of a kernel.

    One whose default is too slow to win gets a look if there is time for it, else none.
    """
    request = state.request
    fair, patience = strategies.fair_trials(request.strategy), patience_of(request.objective)
    left_s = request.budget.deadline(part.share) - time.monotonic()
    if part.behind and left_s < 2 * LOOK_S:
        fair = 0.0
    return StoppingRule(to_beat_us(state), fair, patience).resumed(part.tried)


def to_beat_us(state: SearchState) -> float:
    """The best time of the kernels that were searched before."""
    return min((won.rank_us for won in state.winners), default=math.inf)


def _known_us(state: SearchState, part: Part) -> float:
    """The expected time below which a config replaces the best known one; infinite without one."""
    configs = part.feasible.configs
    if state.anchor is None or not configs:
        return math.inf
    return anchored.to_beat_us(state.anchor, part.name, configs[0])


class AskedEarly:
    """A strategy that was asked before its turn, so that its first configs compile meanwhile."""

    def __init__(self, asked: Strategy, configs: Sequence[Config]) -> None:
        """`asked` has proposed these `configs`."""
        self._asked, self._left = asked, list(configs)

    def ask(self, compiled: bool = False) -> Config | None:
        """Returns these configs, then what the strategy proposes."""
        if self._left and not compiled:
            return self._left.pop(0)
        return self._asked.ask(compiled)

    def tell(self, trial: Trial) -> None:
        """Passes the trial on to the strategy; its config was tried before its turn, perhaps."""
        self._left = [config for config in self._left if config != trial.config]
        self._asked.tell(trial)
