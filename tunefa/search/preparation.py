"""The preparation of a search that waits for its turn at the GPU: compilers work for it, and where
nobody else needs the GPU, it tries what they have compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tunefa.compile.pool import CompilePool
from tunefa.compile.workers import Workers
from tunefa.costmodel.ranking import rank_us
from tunefa.measure import launches
from tunefa.measure.objective import Objective
from tunefa.search import candidates
from tunefa.search.parts import Part
from tunefa.search.state import SearchState
from tunefa.spec.target import Case
from tunefa.spec.trial import Config

LEADER, OTHERS = 8, 4
"""The configs of the leading kernel, and of each other one, that are compiled while another search
has the GPU. They bound what is compiled in vain where a workload gets no turn. The first four of a
kernel do not depend on each other's times, so to choose them early costs nothing."""
SHARING = 3
"""Up to so many searches share the compilers equally. Where there are more, each one that waits
for the GPU may still use a third of them, as not all of them need compilers at the same time."""
Entrant = tuple[Part, Objective]
"""The part of a kernel, and what evaluates its configs."""
Asked = Callable[[Part, int], tuple[Part, list[Config]]]
"""Asks the strategy of a part for so many configs. Returns the part with its strategy, and them."""


@dataclass(eq=False)
class _Prepared:
    """A config that compilers work for, or will, before the search has the GPU."""

    kernel: str
    config: Config
    is_default: bool
    was_tried: bool = False


class Preparation:
    """The work of compilers for a search that waits for the GPU. A part of them must do, so that
    slow ones do not hold up other searches."""

    def __init__(self, state: SearchState, compilers: Workers, entrants: Sequence[Entrant]) -> None:
        """Begins with the defaults that were not tried yet."""
        self.parts = {part.name: part for part, _ in entrants}
        self._objectives = {part.name: objective for part, objective in entrants}
        self._state, self._compilers = state, compilers
        self._left = [
            _Prepared(part.name, part.first[0], True)
            for part, _ in entrants
            if part.first and part.opened is None
        ]
        self._begun: list[_Prepared] = []
        self._unasked: list[tuple[str, int]] = []
        self._ask: Asked | None = None

    @property
    def entrants(self) -> list[Entrant]:
        """The parts, with what was tried, and their objectives."""
        return [(part, self._objectives[name]) for name, part in self.parts.items()]

    def add(self, part: Part, configs: Sequence[Config]) -> None:
        """Adds configs that the strategy of the part was asked for."""
        self.parts[part.name] = part
        self._left += [_Prepared(part.name, config, False) for config in configs]

    def choose(self, counts: Sequence[tuple[str, int]], ask: Asked) -> None:
        """Says how many configs of which kernels to `ask` strategies for, besides the defaults.

        It takes a part of a second for each kernel, and the model may take longer, so defaults that
        are compiled are tried in between."""
        self._unasked, self._ask = list(counts), ask

    @property
    def is_choosing(self) -> bool:
        """Whether it has configs left to ask for."""
        return bool(self._unasked)

    def is_enough(self) -> bool:
        """Lets compilers go on, and asks for configs until one is compiled that can be tried, or
        the model must be waited for. Returns whether all defaults are compiled, and as many of the
        rest as half of the leader's."""
        self._begin_more()
        while self._ask is not None and (chosen := self._askable()) is not None:
            self._unasked.remove(chosen)
            self.add(*self._ask(self.parts[chosen[0]], chosen[1]))
            self._begin_more()
            if self.has_untried():
                break
        if self._unasked or not all(
            self._is_compiled(each) for each in self._all if each.is_default
        ):
            return False
        others = [each for each in self._all if not each.is_default]
        return 2 * sum(map(self._is_compiled, others)) >= min(LEADER, len(others))

    def _askable(self) -> tuple[str, int] | None:
        """The first kernel that has configs left to ask for, and whose times the model has said."""
        model = self._state.model
        for each in self._unasked:
            if model is None or model.has_times(self.parts[each[0]].case):
                return each
        return None

    def _begin_more(self) -> None:
        done = [self._is_compiled(each) for each in self._begun]
        self._begin(self._most_at_once() - done.count(False))

    def _most_at_once(self) -> int:
        """The number of compilers that may work for it at once."""
        turn = self._state.turn
        searches = SHARING if turn is None else max(1, turn.searches)
        return max(1, self._compilers.count // min(SHARING, searches))

    def begin_all(self) -> None:
        """Lets all compilers work for it: it has the GPU."""
        for each in self._left:
            self._begin_one(each)
        self._left.clear()

    def has_untried(self) -> bool:
        """Returns whether a config is compiled and was not tried. None is tried where trials are
        what the budget counts."""
        return self._state.request.budget.seconds is not None and bool(self._untried())

    def try_one(self) -> None:
        """Tries a compiled config: a default, or one of the kernel that was the fastest so far."""
        found = self._untried()
        chosen = min(found, key=lambda each: (not each.is_default, self._best_us(each.kernel)))
        chosen.was_tried = True
        objective = self._objectives[chosen.kernel]
        objective.submit(chosen.config)
        turn = self._state.turn
        trial = objective.next(math.inf if turn is None else max(0.0, turn.left_s))
        if trial is None:  # it had no time to end
            return
        self.parts[chosen.kernel] = self.parts[chosen.kernel].knowing(trial)
        self._state.keep(chosen.kernel, trial)

    def _untried(self) -> list[_Prepared]:
        return [each for each in self._begun if not each.was_tried and self._is_compiled(each)]

    def _best_us(self, kernel: str) -> float:
        right = [each for each in self._state.trials_of(kernel) if each.outcome == "ok"]
        return min(map(rank_us, right), default=math.inf)

    @property
    def _all(self) -> list[_Prepared]:
        return [*self._begun, *self._left]

    def _is_compiled(self, each: _Prepared) -> bool:
        if each in self._left:
            return False
        return each.was_tried or self._objectives[each.kernel].is_prepared(each.config)

    def _begin(self, count: int) -> None:
        """Begins so many configs, but none of a kernel whose default is being compiled: a compiler
        that takes long for it takes long for others."""
        for each in list(self._left):
            if count <= 0:
                return
            if each.is_default or not self._awaits_default(each.kernel):
                self._begin_one(each)
                self._left.remove(each)
                count -= 1

    def _awaits_default(self, kernel: str) -> bool:
        own = [each for each in self._all if each.kernel == kernel and each.is_default]
        return not all(map(self._is_compiled, own))

    def _begin_one(self, each: _Prepared) -> None:
        self._objectives[each.kernel].prepare(each.config, self._compilers)
        self._begun.append(each)


def begin_defaults(cases: Sequence[Case], compilers: Workers) -> None:
    """Lets compilers begin with the defaults of cases, before their configs are listed."""
    for case in cases:
        config = candidates.default(case)
        if config is not None:
            CompilePool(case, None, launches.shape_to_check, compilers).begin(config)
