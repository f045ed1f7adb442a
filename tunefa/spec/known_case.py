"""The expressions of a search space where the workload and the arch are known.

A space has some hundred expressions, and may have 100,000 feasible configs. What reads no parameter
is computed once for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

from tunefa.spec.expr import Expr

FEW = 24
"""For so many configs, folding the expressions takes longer than it saves."""
Steps = Sequence[tuple[str, Callable[[Mapping[str, Any]], Any]]]
_ERRORS = (KeyError, ArithmeticError, TypeError, ValueError, RecursionError)
"""The exceptions of `Expr.run`."""


@dataclass(frozen=True)
class Level:
    """One parameter, and the definitions and rules that can be computed once it is fixed."""

    name: str
    values: Sequence[Any]
    definitions: list[str]
    rules: list[str]


@dataclass(frozen=True)
class KnownCase:
    """The expressions of a space, or what is left of them, and the values that are known."""

    known: Mapping[str, Any]
    derived: Mapping[str, Expr]
    """Definitions and resources, in the order in which later ones read earlier ones."""
    rules: Mapping[str, Expr]
    tilings: Mapping[str, Expr]
    whole: KnownCase | None = None
    """The case that was folded: its errors name an expression as it was written."""

    @cached_property
    def folded(self) -> KnownCase:
        """The case where all that follows from what is known was computed."""
        known, left = dict(self.known), dict[str, Expr]()
        for name, expression in self.derived.items():
            made = expression.given(known)
            if made.is_constant:
                known[name] = made({})
            else:
                left[name] = made
        rules = {name: each.given(known) for name, each in self.rules.items()}
        rules = {name: each for name, each in rules.items() if not _is_always_true(each)}
        tilings = {name: each.given(known) for name, each in self.tilings.items()}
        return KnownCase(known, left, rules, tilings, self)

    def env(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all that rules and tilings read of a config."""
        env = {**self.known, **config}
        try:
            for name, run in self._derived:
                env[name] = run(env)
        except _ERRORS:
            return self._as_written.env(config)
        return env

    def tiling(self, env: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the tiling of a config, whose `env` this is."""
        try:
            return {name: run(env) for name, run in self._tilings}
        except _ERRORS:
            return self._as_written.tiling(env)

    def refusal(self, env: Mapping[str, Any]) -> str | None:
        """Returns the first rule that refuses a config, whose `env` this is; None if none does."""
        try:
            for name, holds in self._rules:
                if not holds(env):
                    return name
        except _ERRORS:
            return self._as_written.refusal(env)
        return None

    def walk(self, levels: Sequence[Level]) -> tuple[list[dict[str, Any]], Counter[str]]:
        """Returns the configs that no rule refuses, and how many each was the first to refuse.

        Parameters are fixed one after the other, so one evaluation of a rule may refuse many.
        """
        try:
            return _Walk(self, levels).result()
        except _ERRORS:
            return self._as_written.walk(levels)

    def steps(self, group: Mapping[str, Expr], names: Iterable[str]) -> Steps:
        """Returns what computes those of the group that are left, with their names."""
        left = ((name, group[name]) for name in names if name in group)
        return [(name, each.run if self.whole else each) for name, each in left]

    def read_by(self, level: Level) -> set[str]:
        """Returns the names that definitions and rules of a level read, or definitions that those
        read."""
        left = [self.derived[name] for name in level.definitions if name in self.derived]
        left += [self.rules[name] for name in level.rules if name in self.rules]
        read = set[str]()
        while left:
            new = left.pop().names - read
            read |= new
            left += [self.derived[name] for name in new & self.derived.keys()]
        return read

    @property
    def _as_written(self) -> KnownCase:
        assert self.whole is not None, "an expression as it was written raises TunefaError"
        return self.whole

    @cached_property
    def _derived(self) -> Steps:
        return self.steps(self.derived, self.derived)

    @cached_property
    def _rules(self) -> Steps:
        return self.steps(self.rules, self.rules)

    @cached_property
    def _tilings(self) -> Steps:
        return self.steps(self.tilings, self.tilings)


class _Walk:
    """One pass through all configs of a space."""

    def __init__(self, case: KnownCase, levels: Sequence[Level]) -> None:
        self._levels = [_LevelOfCase(case, levels[: place + 1]) for place in range(len(levels))]
        self._below = [1]
        for level in reversed(levels):
            self._below.insert(0, self._below[0] * len(level.values))
        self._env, self._config = dict(case.known), dict[str, Any]()
        self._found, self._refused = list[dict[str, Any]](), Counter[str]()

    def result(self) -> tuple[list[dict[str, Any]], Counter[str]]:
        """Walks from the first parameter on. A space without one has one config."""
        if self._levels:
            self._fix(0)
        else:
            self._found.append({})
        return self._found, self._refused

    def _fix(self, depth: int) -> None:
        """Fixes the parameters from `depth` on to all values that they may have."""
        config, env, level = self._config, self._env, self._levels[depth]
        name, (left, refused) = level.name, level.split(config, env)
        for rule in refused:
            self._refused[rule] += self._below[depth + 1]
        is_last = depth + 1 == len(self._levels)
        for value, defined in left:
            config[name] = env[name] = value
            if defined:
                env.update(defined)
            if is_last:
                self._found.append(config.copy())
            else:
                self._fix(depth + 1)


_Split = tuple[list[tuple[Any, dict[str, Any] | None]], list[str]]
"""The values that no rule refuses, with what is defined for each, and the rules that refuse the
others."""


class _LevelOfCase:
    """One parameter of a case. Most rules read few parameters, so for all configs that are equal in
    these, its values are looked at once."""

    def __init__(self, case: KnownCase, levels: Sequence[Level]) -> None:
        own = levels[-1]
        self.name, self._values = own.name, own.values
        self._definitions = case.steps(case.derived, own.definitions)
        self._names = [name for name, _ in self._definitions]
        self._rules = case.steps(case.rules, own.rules)
        read = case.read_by(own)
        before = [each.name for each in levels[:-1] if each.name in read]
        self._key = itemgetter(*before) if before else lambda config: None
        self._known: dict[Any, _Split] | None = {} if len(before) < len(levels) - 1 else None

    def split(self, config: Mapping[str, Any], env: dict[str, Any]) -> _Split:
        """Returns what becomes of each value, after those of the levels before."""
        if self._known is None:
            return self._computed(env)
        key = self._key(config)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._computed(env)
        return found

    def _computed(self, env: dict[str, Any]) -> _Split:
        left, refused = list[tuple[Any, dict[str, Any] | None]](), list[str]()
        for value in self._values:
            env[self.name] = value
            for name, run in self._definitions:
                env[name] = run(env)
            for rule, holds in self._rules:
                if not holds(env):
                    refused.append(rule)
                    break
            else:
                names = self._names
                left.append((value, {name: env[name] for name in names} if names else None))
        return left, refused


class Asked:
    """The case of the last question, which was asked about so many configs."""

    def __init__(self, workload: object, arch: object, case: KnownCase) -> None:
        self._workload, self._arch, self._case, self._configs = workload, arch, case, 0

    def about(self, workload: object, arch: object) -> bool:
        """Whether it is the case of these two objects."""
        return self._workload is workload and self._arch is arch

    def case(self, configs: int) -> KnownCase:
        """Returns the case to ask about so many configs more, folded once there are many."""
        self._configs += configs
        return self._case.folded if self._configs > FEW else self._case


def _is_always_true(rule: Expr) -> bool:
    return rule.is_constant and bool(rule({}))
