"""The configs that a process has compiled for one device."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from tunefa.compile import languages
from tunefa.compile.contract import Compiled
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.spec.target import Case
from tunefa.spec.trial import Config

MAX_COMPILED = 512
"""Compiled configs that are kept for a device."""
Find = Callable[[Case, Config, bool], Compiled | None]


def _nothing(case: Case, config: Config, aligned: bool) -> Compiled | None:
    return None


class Compiler:
    """Compiles configs for one device, and keeps the results.

    One binary serves all batches and lengths, as kernels get them as arguments. A binary is loaded
    into the context of one device, so each device has a compiler of its own.
    """

    def __init__(self, find: Find = _nothing) -> None:
        """`find` returns what needs no compiling: the binaries of bundles."""
        self._compiled: BoundedCache[Compiled] = BoundedCache(MAX_COMPILED)
        self._find = find

    def __len__(self) -> int:
        return len(self._compiled)

    def known(self, case: Case, config: Config, aligned: bool) -> Compiled | None:
        """The binary, if a plan was made with it before, so that it is loaded."""
        return self._compiled.get(_key(case, config, aligned))

    def found(self, case: Case, config: Config, aligned: bool) -> Compiled | None:
        """The binary for a new plan, if it was compiled before or is in a bundle."""
        key = _key(case, config, aligned)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._find(case, config, aligned)
            if compiled is not None:
                self._compiled.add(key, compiled)
        return compiled

    def __call__(self, case: Case, config: Config, aligned: bool) -> Compiled:
        """The binary for a new plan: what `found` returns, else what `compile` of the kernel's
        language does; raises the errors that it raises."""
        compiled = self.found(case, config, aligned)
        if compiled is None:
            compiled = languages.load(case.kernel.language).compile(case, config, aligned)
            self._compiled.add(_key(case, config, aligned), compiled)
        return compiled


def _key(case: Case, config: Config, aligned: bool) -> Hashable:
    language = languages.load(case.kernel.language)
    return case.arch.name, language.binary_key(case, config, aligned)
