"""What a process compiled for one device."""

from __future__ import annotations

from tunefa.compile import languages
from tunefa.compile.contract import Compiled
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.spec.target import Case
from tunefa.spec.trial import Config

MAX_COMPILED = 512


class Compiler:
    """A language's `compile` for one device, which remembers what it compiled.

    Another batch or length takes the same binary: kernels get these as arguments. A binary is
    loaded into one device's context, so every device has a compiler of its own.
    """

    def __init__(self) -> None:
        self._compiled: BoundedCache[Compiled] = BoundedCache(MAX_COMPILED)

    def __call__(self, case: Case, config: Config, aligned: bool) -> Compiled:
        """As `compile` of the kernel's language; raises what that raises."""
        language = languages.load(case.kernel.language)
        key = (case.arch.name, language.binary_key(case, config, aligned))
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = language.compile(case, config, aligned)
            self._compiled.add(key, compiled)
        return compiled
