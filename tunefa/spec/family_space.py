"""The search space of a kernel for one family of workloads, which differ in batch and lengths only.

It answers as the whole space does, in some microseconds: all that does not depend on the batch and
the lengths is computed once, for the family and for each config that is asked about.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from tunefa.spec.arch import Arch
from tunefa.spec.default import Default, first_that_fits
from tunefa.spec.expr import Expr
from tunefa.spec.space import Space
from tunefa.spec.tiling import Tiling
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

LENGTHS = ("batch", "seqlen_q", "seqlen_k")
"""The fields in which workloads of one family may differ."""
MAX_CONFIGS = 256
"""Configs whose expressions are kept."""
Named = tuple[tuple[str, Expr], ...]


@dataclass(frozen=True)
class FamilySpace(Space):
    """A space whose expressions know all of a workload but its batch and lengths."""

    never: str | None = None
    """The reason that the kernel serves no workload of the family; None if it serves some."""
    _configs: dict[tuple[object, ...], ConfigSpace] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls, space: Space, workload: Workload, arch: Arch, free: Sequence[str] = LENGTHS
    ) -> FamilySpace:
        """Returns the space for the family of a workload on an arch, which differ in the lengths
        that are `free`."""
        known = {**workload.env(), **arch.env()}
        for name in free:
            del known[name]

        def given(expressions: Mapping[str, Expr]) -> dict[str, Expr]:
            return {name: each.given(known) for name, each in expressions.items()}

        own = {each.name: getattr(space, each.name) for each in fields(Space)}
        changed: dict[str, Any] = {
            name: given(own[name])
            for name in ("serves", "define", "resources", "rules", "tiling_exprs")
        }
        for name in ("defaults", "default_changes"):
            whens = ((each, each.when.given(known)) for each in own[name])
            changed[name] = tuple(
                replace(each, when=when) for each, when in whens if when.names or when({})
            )
        changed["priority"] = space.priority.given(known)
        conditions = _undecided(changed["serves"])
        never = conditions[0][0] if conditions and not conditions[0][1].names else None
        why = space.why_not(workload, arch)
        if why is not None and why not in space.serves:  # the chip, the op or the dtype
            never = why
        return cls(**{**own, **changed}, never=never)

    def why_not(self, workload: Workload, arch: Arch) -> str | None:
        """Returns why the kernel does not serve the workload on the arch; None if it does."""
        if self.never is not None or not self._whether:
            return self.never
        env = _lengths(workload)
        return next((name for name, holds in self._whether if not holds(env)), None)

    @cached_property
    def _whether(self) -> Named:
        """The conditions that decide whether the kernel serves a workload, by name."""
        return _undecided(self.serves)

    def refusal(self, config: Config, workload: Workload, arch: Arch) -> str | None:
        """Returns the first rule that refuses the config; None if it is feasible."""
        return self.of_config(config).refusal(_lengths(workload))

    def runs(self, config: Config) -> Callable[[dict[str, Any]], bool] | None:
        """Returns whether the kernel serves a workload with a config that no rule refuses, as a
        function of its batch and lengths; None where that is so in the whole family."""
        own, whether = self.of_config(config), [holds for _, holds in self._whether]
        if self.never is not None or own.misfit is not None:
            return lambda env: False
        if not whether and not own.rules:
            return None
        if own.define or own.resources:
            return lambda env: all([holds(env) for holds in whether]) and own.refusal(env) is None
        conditions = [*whether, *(holds for _, holds in own.rules)]

        def runs(env: dict[str, Any]) -> bool:
            for holds in conditions:  # noqa: SIM110 - a generator takes longer
                if not holds(env):
                    return False
            return True

        return runs

    def runs_throughout(self, config: Config, batch: int, rows: range, keys: range) -> bool:
        """Returns whether `runs` is true of all these lengths of queries and keys."""
        runs, own = self.runs(config), self.of_config(config)
        if runs is None:
            return True
        whether = (own.read_by(holds) for _, holds in (*self._whether, *own.rules))
        if any({"seqlen_q", "seqlen_k"} <= read for read in whether):
            pairs: Iterable[tuple[int, int]] = itertools.product(rows, keys)
        else:  # each condition reads one of them, so it holds of all pairs if it holds of each
            pairs = itertools.chain(
                ((each, keys[0]) for each in rows), ((rows[0], x) for x in keys)
            )
        return all(runs({"batch": batch, "seqlen_q": m, "seqlen_k": n}) for m, n in pairs)

    def tiling_and_estimate(
        self, config: Config, workload: Workload, arch: Arch
    ) -> tuple[Tiling, dict[str, float]]:
        """Returns the tiling of a config and the lower bounds of its resources."""
        return self.of_config(config).tiling_and_estimate(_lengths(workload))

    def first_default(self, workload: Workload, arch: Arch) -> Default:
        """Returns the first default that matches and fits, with the first change that does so.
        Raises TunefaError if there is none."""
        env = _lengths(workload)
        found = first_that_fits(
            self.defaults, self.default_changes, env, lambda c: self.of_config(c).refusal(env)
        )
        return found if isinstance(found, Default) else super().first_default(workload, arch)

    def of_config(self, config: Config) -> ConfigSpace:
        """Returns what is left of the expressions for a config."""
        key = *config.items(), *map(type, config.values())  # 64.0 is not 64 in a space
        found = self._configs.get(key)
        if found is None:
            if len(self._configs) >= MAX_CONFIGS:
                self._configs.clear()
            found = self._configs[key] = ConfigSpace.of(self, config)
        return found


@dataclass(frozen=True)
class ConfigSpace:
    """The part of a space's expressions that is left for one config of a family."""

    misfit: str | None
    rules: Named
    define: Named
    """The names that rules, resources and tilings read, as far as they depend on lengths."""
    resources: Named
    tiling_exprs: Named
    known_resources: Mapping[str, float]
    known_tiling: Mapping[str, Any]

    @classmethod
    def of(cls, space: FamilySpace, config: Config) -> ConfigSpace:
        """Returns what is left of `space` for a config."""
        if misfit := space.misfit(config):
            return cls(misfit, (), (), (), (), {}, {})
        known, define, resources = dict(config), dict[str, Expr](), dict[str, Expr]()
        for group, left in ((space.define, define), (space.resources, resources)):
            for name, expression in group.items():
                made = expression.given(known)
                if made.names:
                    left[name] = made
                else:
                    known[name] = made({})
        tiling = {name: each.given(known) for name, each in space.tiling_exprs.items()}
        return cls(
            None,
            _undecided({name: each.given(known) for name, each in space.rules.items()}),
            tuple(define.items()),
            tuple(resources.items()),
            tuple((name, each) for name, each in tiling.items() if each.names),
            {name: known[name] for name in space.resources if name in known},
            {name: each({}) for name, each in tiling.items() if not each.names},
        )

    def read_by(self, expression: Expr) -> frozenset[str]:
        """Returns the lengths that an expression reads, also by what it derives from them."""
        read = set(expression.names)
        for name, each in reversed((*self.define, *self.resources)):  # later ones read earlier ones
            if name in read:
                read |= each.names
        return frozenset(read.intersection(LENGTHS))

    def refusal(self, env: dict[str, Any]) -> str | None:
        """Returns the first rule that refuses the config for these lengths; None if none does."""
        if self.misfit is not None or not self.rules:
            return self.misfit
        if self.define or self.resources:
            env = self._with_derived(env)
        return next((name for name, holds in self.rules if not holds(env)), None)

    def tiling_and_estimate(self, env: dict[str, Any]) -> tuple[Tiling, dict[str, float]]:
        """Returns the tiling of the config and the lower bounds of its resources."""
        if not self.tiling_exprs and not self.resources:
            return self._tiling, dict(self.known_resources)
        env = self._with_derived(env)
        tiling = {name: each(env) for name, each in self.tiling_exprs}
        needed = {name: env[name] for name, _ in self.resources}
        return Tiling(**self.known_tiling, **tiling), {**self.known_resources, **needed}

    @cached_property
    def _tiling(self) -> Tiling:
        return Tiling(**self.known_tiling)

    def _with_derived(self, env: dict[str, Any]) -> dict[str, Any]:
        env = dict(env)
        for name, expression in (*self.define, *self.resources):
            env[name] = expression(env)
        return env


def _undecided(conditions: Mapping[str, Expr]) -> Named:
    """Returns the conditions, by name, that may not hold, up to the first that never does."""
    left: list[tuple[str, Expr]] = []
    for name, holds in conditions.items():
        if holds.names:
            left.append((name, holds))
        elif not holds({}):
            return (*left, (name, holds))
    return tuple(left)


def _lengths(workload: Workload) -> dict[str, Any]:
    return {
        "batch": workload.batch,
        "seqlen_q": workload.seqlen_q,
        "seqlen_k": workload.seqlen_k,
    }
