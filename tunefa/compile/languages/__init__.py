"""Languages compile a case's config for a target with no device present, and launch it on one.

A language is a module here, found by its file name, with

* `compile(case, config, aligned=True) -> Compiled`: raises CompileError;
* `binary_key(case, config, aligned) -> Hashable`: equal for all that compile to one binary,
  whatever their lengths;
* `prepare(spec, compiled, tensors) -> Launch`, `spec` a LaunchSpec: on the tensors' device, under a
  CUDA graph capture too; raises CompileError where the device has not enough for it;
* `interpret(spec, tensors)`: on the CPU, for checking numerics; left out where the language has no
  interpreter;
* `why_no_interpreter() -> str | None`: why it is left out, or does not run with what is installed;
* `why_no_compiler(arch) -> str | None`: why it cannot compile for an arch here, and what to
  install; left out where tunefa itself asks for the compiler when it is installed;
* `versions() -> dict[str, str | None]`: of its toolchain, for provenance;
* `quick_versions() -> dict[str, str | None]`: the part of it that takes no import of a compiler; left out
  where that is Triton's version;
* `trial_key(case, config) -> Hashable`: equal for configs that are known to be one trial before
  they are compiled; left out where there are none.

The types they share are in tunefa/compile/contract.py.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Sequence
from types import ModuleType

from tunefa.errors import unknown
from tunefa.spec.arch import Arch
from tunefa.spec.kernel import Kernel


def names() -> list[str]:
    """All languages: the modules in this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


@functools.cache  # each new shape of a call asks, and a language stays
def load(name: str) -> ModuleType:
    """The language of that name. Raises TunefaError for an unknown one."""
    if name not in names():
        raise unknown("language", name, names())
    return importlib.import_module(f"{__name__}.{name}")


def without_compiler(kernels: Sequence[Kernel], arch: Arch) -> dict[str, str]:
    """The kernels that cannot be compiled for `arch` here, each with the reason."""
    asked = {name: load(name) for name in {kernel.language for kernel in kernels}}
    reasons = {
        name: language.why_no_compiler(arch)
        for name, language in asked.items()
        if hasattr(language, "why_no_compiler")
    }
    return {k.name: why for k in kernels if (why := reasons.get(k.language)) is not None}


def has_interpreter(name: str) -> bool:
    """Whether the language has an interpreter at all, be it one that does not run here."""
    return hasattr(load(name), "interpret")
