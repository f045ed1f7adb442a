"""The parts of a search: one for each kernel, in the order in which they are searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunefa.costmodel import anchored
from tunefa.costmodel.anchor import Anchor
from tunefa.search import candidates, kernel_race, resume
from tunefa.search.request import Request
from tunefa.search.state import SearchState
from tunefa.spec.space import Feasible
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Trial, identity
from tunefa.store import lookup
from tunefa.store.results import Store

MOST_FIRST = 3
"""How many known configs of a kernel a search without a device compiles before others: each takes
seconds, and all but the best known one rarely win."""


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
        earlier = resume.trials(request.resume, name, own)
        if anchor is not None:
            earlier = [anchored.judged(anchor, name, trial) for trial in earlier]
        parts.append(Part(case, own, known, first, earlier, share))
    return parts


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
