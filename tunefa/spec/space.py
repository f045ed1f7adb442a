"""The search space of a kernel: parameters, named rules, resources and defaults, from one file.

The name of a rule is the message that a user reads when the rule refuses a config. A resource
expression is a lower bound of what the compiler will need: it refuses configs that cannot run, and
the compiler decides about the others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tunefa import assets
from tunefa.errors import TunefaError, unknown
from tunefa.spec import arch_catalog as archs
from tunefa.spec import shared_memory, space_file
from tunefa.spec.arch import Arch
from tunefa.spec.default import Default, first_that_fits, with_changes
from tunefa.spec.expr import Expr
from tunefa.spec.known_case import Asked, KnownCase, Level
from tunefa.spec.shared_memory import RegionExprs, SharedMemory
from tunefa.spec.tiling import OneTiling, Tiling
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

_EXAMPLES = {"fwd": "q1", "bwd": "bwd_q1", "decode": "decode_k1", "prefill": "q1_page1",
             "matmul": "matmul_m1"}  # fmt: skip
_WORKLOAD_NAMES = {op: frozenset(Workload.parse(text).env()) for op, text in _EXAMPLES.items()}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel, and the values that it may have."""

    name: str
    values: tuple[Any, ...]
    doc: str
    timed_only: bool = False
    """Whether only a device, or what was learned there, tells its values apart: see `untimed`."""


@dataclass(frozen=True)
class Feasible:
    """The configs that the rules of a space allow, and how many configs each rule refused."""

    configs: Sequence[dict[str, Any]]
    refused: Mapping[str, int]
    """By rule, in the order of the file: how many configs it was the first rule to refuse."""

    @property
    def total(self) -> int:
        """The number of configs in the space, without rules."""
        return len(self.configs) + sum(self.refused.values())


@dataclass(frozen=True)
class Space:
    """The parameters and rules of one kernel. `load` reads it from a file."""

    kernel: str
    op: str
    language: str
    vendor: str
    """The vendor of the chips that the kernel runs on."""
    priority: Expr
    priority_on: Mapping[str, int]  # on single archs, by name
    """Decides when no record applies: of the kernels that serve a workload, the lowest runs."""
    parameters: tuple[Parameter, ...]
    serves: Mapping[str, Expr]
    define: Mapping[str, Expr]  # the ends of shared memory's regions too
    resources: Mapping[str, Expr]
    rules: Mapping[str, Expr]
    shared_memory_exprs: tuple[RegionExprs, ...]
    """Empty where the compiler lays out shared memory."""
    tiling_exprs: Mapping[str, Expr]
    """An expression for each field of the tiling, see `tiling.KINDS`."""
    defaults: tuple[Default, ...]
    default_changes: tuple[Default, ...]
    """Changes some parameters of a default, whichever it is."""
    unaligned: Mapping[str, Any] | str
    """The parameter values for tensors that are not aligned; or why it cannot read these."""
    path: Path = field(compare=False)

    def why_not(self, workload: Workload, arch: Arch) -> str | None:
        """Returns why the kernel does not serve the workload on the arch; None if it does."""
        if arch.vendor != self.vendor:
            return f"it runs on chips of {self.vendor}, not of {arch.vendor}"
        if workload.op != self.op:
            return f"it computes {self.op}, not {workload.op}"
        if workload.dtype not in arch.dtypes:
            return f"{arch.name} has no {workload.dtype}"
        env = {**workload.env(), **arch.env()}
        return next((name for name, holds in self.serves.items() if not holds(env)), None)

    def refusal(self, config: Config, workload: Workload, arch: Arch) -> str | None:
        """Returns the name of the first rule that refuses the config; None if it is feasible. For a
        config that is not in the space it returns what `misfit` returns."""
        if misfit := self.misfit(config):
            return misfit
        case = self._case(workload, arch)
        return case.refusal(case.env(config))

    def refusals(self, config: Config, workload: Workload, arch: Arch) -> tuple[str, ...]:
        """Returns the names of all rules that refuse a config of the space."""
        env = self._case(workload, arch).env(config)
        return tuple(name for name, holds in self.rules.items() if not holds(env))

    def misfit(self, config: Config) -> str | None:
        """Returns why the config is not in this space, apart from its rules; None if it is."""
        for parameter in self.parameters:
            if parameter.name not in config:
                return f"parameter {parameter.name} is missing"
            value = config[parameter.name]
            # 64.0 == 64 and True == 1, but a compiler does not accept them as the size of a tile.
            if not any(value == each and type(value) is type(each) for each in parameter.values):
                return f"{parameter.name}={value!r} is not in the space"
        if len(config) != len(self.parameters):
            extra = ", ".join(sorted(set(config) - {p.name for p in self.parameters}))
            return f"unknown parameter {extra}"
        return None

    def estimate(self, config: Config, workload: Workload, arch: Arch) -> dict[str, float]:
        """Returns lower bounds of the resources, by their names in the file (`smem_bytes`)."""
        env = self._case(workload, arch).env(config)
        return {name: env[name] for name in self.resources}

    def shared_memory(self, config: Config, workload: Workload, arch: Arch) -> SharedMemory | None:
        """The layout of shared memory; None where the compiler makes it. Raises TunefaError, with
        file and line, for regions that overlap."""
        if not (regions := self.shared_memory_exprs):
            return None
        return shared_memory.lay_out(regions, self._case(workload, arch).env(config))

    def tiling(self, config: Config, workload: Workload, arch: Arch) -> Tiling:
        """Returns the tiling of a config, for a kernel of attention for GPUs."""
        return self.tiling_and_estimate(config, workload, arch)[0]

    def tiling_and_estimate(
        self, config: Config, workload: Workload, arch: Arch
    ) -> tuple[Tiling, dict[str, float]]:
        """Returns `tiling` and `estimate`, for a kernel for GPUs, in about half of the time."""
        return self.tiling_as_and_estimate(Tiling, config, workload, arch)

    def tiling_as_and_estimate(
        self, kind: type[OneTiling], config: Config, workload: Workload, arch: Arch
    ) -> tuple[OneTiling, dict[str, float]]:
        """Returns the tiling of a config as `kind`, that of the space's op (`tiling.KINDS`), and
        `estimate`."""
        case = self._case(workload, arch)
        env = case.env(config)
        return kind(**case.tiling(env)), {name: env[name] for name in self.resources}

    @cached_property
    def seen_by_cost_model(self) -> tuple[str, ...]:
        """The parameters that estimates and tilings depend on; a learned model may see more."""
        derived = {**self.define, **self.resources}
        left, seen = [*self.resources.values(), *self.tiling_exprs.values()], set[str]()
        while left:
            new = left.pop().names - seen
            seen |= new
            left += [derived[name] for name in new & derived.keys()]
        return tuple(each.name for each in self.parameters if each.name in seen)

    def default(self, workload: Workload, arch: Arch) -> dict[str, Any]:
        """Returns the config to run without a search. Raises what `first_default` raises."""
        return dict(self.first_default(workload, arch).config)

    def first_default(self, workload: Workload, arch: Arch) -> Default:
        """Returns the first default that matches and fits, with the first change that does so.
        Raises TunefaError if there is none."""
        env = {**workload.env(), **arch.env()}
        refusal = lambda config: self.refusal(config, workload, arch)  # noqa: E731
        found = first_that_fits(self.defaults, self.default_changes, env, refusal)
        if isinstance(found, Default):
            return found
        raise TunefaError(f"{self.kernel} has no default for {workload} on {arch.name}: {found}")

    def untimed(self, learned: Collection[str] = ()) -> Space:
        """Returns the space with the first value alone of `timed_only` ones but the `learned`."""
        kept = {p.name for p in self.parameters if not p.timed_only} | {*learned}
        cut = [p if p.name in kept else replace(p, values=p.values[:1]) for p in self.parameters]
        return replace(self, parameters=tuple(cut))

    def feasible(self, workload: Workload, arch: Arch) -> Feasible:
        """Returns every config that no rule refuses, in the order of the file, and the refusals.

        Parameters are fixed one after the other, and each rule is evaluated as soon as all
        parameters that it reads are fixed. So one evaluation may refuse many configs.
        """
        size = math.prod(len(parameter.values) for parameter in self.parameters)
        found, refused = self._case(workload, arch, size).walk(self._levels)
        return Feasible(tuple(found), {rule: refused[rule] for rule in self.rules})

    @cached_property
    def _levels(self) -> list[Level]:
        """For each parameter, the definitions and rules that can be computed once it is fixed."""
        place = {parameter.name: depth for depth, parameter in enumerate(self.parameters)}
        for name, expression in (*self.define.items(), *self.resources.items()):
            place[name] = max((place.get(used, 0) for used in expression.names), default=0)
        levels = [Level(each.name, each.values, [], []) for each in self.parameters]
        for name in (*self.define, *self.resources):
            levels[place[name]].definitions.append(name)
        for name, rule in self.rules.items():
            depth = max((place.get(used, 0) for used in rule.names), default=0)
            levels[depth].rules.append(name)
        return levels

    def __getstate__(self) -> dict[str, Any]:
        """The state that another process gets: not how questions are answered here."""
        return {name: value for name, value in self.__dict__.items() if name != "_asked"}

    def _case(self, workload: Workload, arch: Arch, configs: int = 1) -> KnownCase:
        """Returns what is known of a case, to answer about so many configs more."""
        asked: Asked | None = self.__dict__.get("_asked")
        if asked is None or not asked.about(workload, arch):
            known = {**workload.env(), **arch.env()}
            derived = {**self.define, **self.resources}
            asked = Asked(workload, arch, KnownCase(known, derived, self.rules, self.tiling_exprs))
            self.__dict__["_asked"] = asked
        return asked.case(configs)


def names() -> list[str]:
    """Returns the names of the kernels with a space: the files in `search_spaces/`."""
    return sorted(path.stem for path in assets.root("search_spaces").glob("*.yaml"))


def load(kernel: str) -> Space:
    """Returns the space of a kernel.

    Raises TunefaError if the kernel is unknown, or its file is not valid: a duplicate key, an
    unknown name in an expression, a default that is not in the space.
    """
    path = assets.root("search_spaces") / f"{kernel}.yaml"
    if not path.is_file():
        raise unknown("kernel", kernel, names())
    return read(path)


def read(path: Path) -> Space:
    """Returns the space in one file. Raises TunefaError, with file and line, if it is not valid."""
    fields = space_file.read(path)
    outer = _outer_names(fields["vendor"], fields["op"])
    parameters = tuple(_parameter(each, outer) for each in fields["parameters"])
    space = Space(**{**fields, "parameters": parameters})
    _check_names(space, outer)
    return space


def _parameter(fields: dict[str, Any], outer: frozenset[str]) -> Parameter:
    where = fields.pop("where")
    if fields["name"] in outer:
        raise TunefaError(f"{where}: the name is already one of a workload or an arch")
    return Parameter(**fields)


def _check_names(space: Space, outer: frozenset[str]) -> None:
    """Raises TunefaError for unknown names in expressions, and defaults outside of the space."""
    whens = (default.when for default in (*space.defaults, *space.default_changes))
    for when in (space.priority, *space.serves.values(), *whens):
        _check_known(when, outer)
    known = outer | {p.name for p in space.parameters}
    for name, expression in (*space.define.items(), *space.resources.items()):
        _check_known(expression, known)
        if name in known:
            raise TunefaError(f"{expression.where}: the name {name} is already taken")
        known |= {name}
    for expression in (*space.rules.values(), *space.tiling_exprs.values()):
        _check_known(expression, known)
    for default in with_changes(space.defaults, space.default_changes):
        if misfit := space.misfit(default.config):
            raise TunefaError(f"{default.when.where}: {misfit}")


def _check_known(expression: Expr, names: frozenset[str]) -> None:
    for name in sorted(expression.names - names):
        raise TunefaError(f"{expression.where}: {unknown('name', name, names)}")


def _outer_names(vendor: str, op: str) -> frozenset[str]:
    """Returns the names that every expression may read: of workloads, and the vendor's archs."""
    return _WORKLOAD_NAMES[op] | archs.load(archs.names(vendor)[0]).env().keys()
