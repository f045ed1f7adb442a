"""The parts of a search: one for each kernel, in the order in which they are searched."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tunefa.costmodel import anchored
from tunefa.costmodel.anchor import Anchor
from tunefa.costmodel.estimate import estimates, expected_us
from tunefa.costmodel.ranking import rank_us
from tunefa.search import candidates, kernel_race, race_time, resume
from tunefa.search.model_process import ModelProcess
from tunefa.search.request import Request
from tunefa.search.state import SearchState
from tunefa.search.stopping import BEHIND
from tunefa.search.strategy import Strategy
from tunefa.spec.space import Feasible
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Trial, identity
from tunefa.store import lookup
from tunefa.store.results import Store

MOST_FIRST = 3
"""The number of known configs of a kernel that a search without a device compiles before others:
each takes seconds, and all but the best known one rarely win."""


LOOKED_AT = 1000
"""Configs of which the model says how fast a kernel may be, in 0.2 s; all may take 2 s."""
_LEAST_SEARCHED = 0.4
"""The part of a budget after which races of other kernels begin at the earliest."""
RACE_ALONE_S = 1.0
"""Seconds to race the default of a kernel that is not searched: on an H200 0.4 to 1.3 s."""


@dataclass(frozen=True)
class Part:
    """The part of a search that belongs to one kernel."""

    case: Case
    feasible: Feasible
    known: Sequence[Config]
    """The configs that finalists must beat: the nearest workload's winner, and the first ones."""
    first: Sequence[Config]
    """The configs that are tried first: the kernel's default, and without a device other configs
    that are known to be good."""
    earlier: list[Trial]
    """The kernel's trials in the search that this one continues."""
    share: float
    """The fraction of the whole budget that is used when this kernel is done, 0 to 1."""
    opened: Trial | None = None
    """The trial of its default in the opening of the search, or in the earlier search."""
    early: Sequence[Trial] = ()
    """The trials of others of its configs, while the search waited for its turn at the GPU."""
    strategy: Strategy | None = None
    """Its strategy, if it was asked in the opening."""
    expected_us: Sequence[float] = ()
    """The time that the cost model expects of each feasible config, if it was asked before."""
    behind: bool = False
    """Whether its default is so slow that the model expects none of its configs to win."""

    @property
    def tried(self) -> list[Trial]:
        """The trials that are known when its search begins."""
        known = any(trial is self.opened for trial in self.earlier)
        opened = [] if self.opened is None or known else [self.opened]
        return [*self.earlier, *opened, *self.early]

    def knowing(self, trial: Trial) -> Part:
        """Returns the part with a trial from before its search, which its strategy is told."""
        if self.strategy is not None:
            self.strategy.tell(trial)
        if trial.config in self.first[:1]:
            return replace(self, opened=trial)
        return replace(self, early=(*self.early, trial))

    @property
    def is_single(self) -> bool:
        """Whether there is only one config, as for a library."""
        return len(self.feasible.configs) <= 1

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.case.kernel.name


def anchor(request: Request, store: Store) -> Anchor | None:
    """Returns what is known to be good, where times are predicted for a GPU; None if nothing is."""
    if request.objective != "predicted":
        return None
    ranked = lookup.by_trust(store.records(), request.workload, request.target)
    found = Anchor.of(ranked, request.workload, request.target, request.kernels)
    return found if found.known else None


def ordered(state: SearchState, feasible: Mapping[str, Feasible], store: Store) -> list[Part]:
    """Returns the parts of the kernels: libraries first, then that of the best known config, then
    by predicted time.

    A library has few configs, often one, so it leaves nearly all of the budget to the others.
    """
    request, anchor = state.request, state.anchor
    cases = [request.case(k) for k in request.kernels if feasible[k.name].configs]
    before_race = kernel_race.share_before(request, len(cases))
    cases = candidates.by_predicted_time(cases, feasible)
    if anchor is not None and anchor.recommended is not None:
        best = anchor.recommended.kernel
        cases.sort(key=lambda case: case.kernel.name != best)
    libraries = [case for case in cases if case.kernel.is_library]
    ours = [case for case in cases if not case.kernel.is_library]
    shares = request.budget.shares(len(ours) or len(libraries), before_race)
    if ours:
        shares = [shares[0]] * len(libraries) + shares
    parts = []
    for case, share in zip([*libraries, *ours], shares, strict=True):
        name, own = case.kernel.name, feasible[case.kernel.name]
        first = _first(request, case, own, anchor)
        known = [*candidates.known_configs(request, case, store), *first]
        earlier = resume.trials(request.resume, case)
        if anchor is not None:
            earlier = [anchored.judged(anchor, name, trial) for trial in earlier]
        opened = next((trial for trial in earlier if trial.config in first[:1]), None)
        parts.append(Part(case, own, known, first, earlier, share, opened))
    return parts


def by_lead(state: SearchState, parts: Sequence[Part]) -> list[Part]:
    """Returns the parts in the order of what the opening says, with their shares of the budget.

    The kernel whose default is the fastest comes first, and has most of the budget. Then come those
    whose expected best time is at most BEHIND above the leader's: the default's time, scaled by the
    model's ratio of best to default. The others have no share, but what is left over, and time for
    a race.
    """
    leader_us = min(map(_default_us, parts), default=math.inf)
    hoped = {part.name: _hoped_us(state.model, part, leader_us) for part in parts}
    made = [
        replace(part, behind=hoped[part.name] > (1.0 + BEHIND) * leader_us)
        for part in sorted(parts, key=lambda part: hoped[part.name])
    ]
    made.sort(key=lambda part: (_default_us(part) > leader_us, part.behind, part.is_single))
    sharing = [part for part in made if not part.behind and not part.is_single]
    request = state.request
    last, before_race = _before_races(state, made, sharing)
    ends = request.budget.shares(max(1, len(sharing)), before_race)
    shares = {part.name: end for part, end in zip(sharing, ends, strict=False)}
    return [replace(part, share=shares.get(part.name, last)) for part in made]


def _before_races(
    state: SearchState, made: Sequence[Part], sharing: Sequence[Part]
) -> tuple[float, float]:
    """The part of the budget after which the kernels' winners race, and that after which kernels
    race that are not searched."""
    request, seconds = state.request, state.request.budget.seconds
    last = kernel_race.share_before(request, len(made))
    if seconds is None or request.objective != "measured":
        return last, last
    others = [part for part in made if part not in sharing]
    if state.turn is None:
        return last, last - min(0.1, RACE_ALONE_S * len(others) / seconds)
    known = [us for us in map(_default_us, made) if us < math.inf]
    last_s = seconds - state.turn.pace * race_time.kernels_s(known)
    alone_s = sum(reserve_s(state, part, RACE_ALONE_S, race_time.ALONE) for part in others)
    least = _LEAST_SEARCHED if sharing else 0.0
    return max(least, last_s / seconds), max(least, (last_s - alone_s) / seconds)


def reserve_s(state: SearchState, part: Part, otherwise_s: float, racers: int) -> float:
    """The seconds to leave for the race of a kernel with so many racers; `otherwise_s` where the
    search has its GPU alone, or the kernel no time yet."""
    right = [trial for trial in part.tried if trial.outcome == "ok"]
    best_us = min(map(rank_us, right), default=math.inf)
    if state.turn is None or state.request.objective != "measured" or math.isinf(best_us):
        return otherwise_s
    return state.turn.pace * race_time.race_s(state.request.workload, best_us, racers)


def _default_us(part: Part) -> float:
    """The time of the default in the opening; infinite where it has none."""
    if part.opened is None or part.opened.outcome != "ok":
        return math.inf
    return rank_us(part.opened)


def _hoped_us(model: ModelProcess | None, part: Part, leader_us: float) -> float:
    """The time that the best config of a kernel may have, from its default's time and the model.

    Where the default is not right, nothing is known: it may be as fast as the leader.
    """
    default_us = _default_us(part)
    if math.isinf(default_us) or default_us <= (1.0 + BEHIND) * leader_us or part.is_single:
        return leader_us if math.isinf(default_us) else default_us
    configs = part.feasible.configs
    looked_at = random.Random(0).sample(range(len(configs)), min(LOOKED_AT, len(configs)))
    known_us = part.expected_us
    if not known_us and model is not None and model.has_times(part.case):
        known_us = model.expected_us(part.case, part.feasible)
    if known_us:
        times = [known_us[place] for place in looked_at]
    else:
        asked = [configs[place] for place in looked_at]
        times = [each.time_us for each in estimates(part.case, asked)]
    best_us = min((us for us in times if us > 0), default=0.0)
    own_us = expected_us(part.case, part.first[0])
    known = 0.0 < best_us < own_us < math.inf
    return default_us * (best_us / own_us if known else 1.0)


def _first(request: Request, case: Case, feasible: Feasible, anchor: Anchor | None) -> list[Config]:
    """The configs that are tried first: the default, unless a replay does not know it. With an
    anchor the best known config comes before it, and others of the kernel after it."""
    default = candidates.default(case)
    listed = [] if default is None else [default]
    if request.replay is not None:
        return [config for config in listed if config in feasible.configs]
    if anchor is None:
        return listed
    best, name = anchor.recommended, case.kernel.name
    if best is not None and best.kernel == name:
        listed.insert(0, best.config)
    listed += [each.config for each in anchor.known if each.kernel == name]
    return list({identity(config): config for config in listed}.values())[:MOST_FIRST]
