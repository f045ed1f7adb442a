"""Languages compile a kernel's config for a target with no device present, and launch it on one.

A language is a module here, found by its file name, with

* `compile(kernel, workload, config, arch, aligned=True) -> Compiled`: raises CompileError;
* `binary_key(kernel, workload, config, aligned) -> Hashable`: equal for all that compile to one
  binary, whatever their lengths;
* `prepare(kernel, compiled, tensors, workload, config, scale, softcap=None) -> Launch`: on the
  tensors' device, under a CUDA graph capture too; raises CompileError where the device has not
  enough for it;
* `interpret(kernel, tensors, workload, config, scale)`: on the CPU, for checking numerics; left out
  where the language has no interpreter;
* `why_no_interpreter() -> str | None`: why it is left out, or does not run with what is installed;
* `why_no_compiler(arch) -> str | None`: why it cannot compile for an arch here, and what to
  install; left out where tunefa itself asks for the compiler when it is installed;
* `versions() -> dict[str, str | None]`: of its toolchain, for provenance;
* `at_hand() -> dict[str, str | None]`: the part of it that takes no import of a compiler; left out
  where that is Triton's version;
* `trial_key(kernel, workload, config) -> Hashable`: equal for configs that are known to be one
  trial before they are compiled; left out where there are none.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from tunefa.arch import Arch
from tunefa.errors import unknown
from tunefa.kernel import Kernel
from tunefa.trial import Config, Outcome, Resources
from tunefa.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor


class CompileError(Exception):
    """A config that does not compile: expected in a search, and data there."""

    def __init__(
        self,
        reason: str,
        outcome: Outcome = "compile_failed",
        resources: Resources | None = None,
    ) -> None:
        """`resources`: what the config asks for, where the compiler says so as it refuses it."""
        super().__init__(reason)
        self.outcome = outcome
        self.resources = resources


@dataclass(frozen=True)
class Compiled:
    """One config, compiled for one target."""

    binary: Any
    """What the language launches."""
    inspect: Callable[[], Resources]
    seconds: float
    """What compiling took; next to nothing when the language's cache had it."""
    prologue: Any = None
    """The binary of what a call launches first; None where the kernel needs no such thing."""

    @functools.cached_property
    def resources(self) -> Resources:
        """What one program needs, read from the binary: tens of ms, so only when asked for."""
        return self.inspect()


class Launch(Protocol):
    """A kernel that is ready to start. Threads may share it."""

    @property
    def device_bytes(self) -> int:
        """Device memory that it holds."""

    def __call__(self, *tensors: Tensor) -> None:
        """Starts it on as many tensors as it was prepared for, q, k, v, out and lse first, that lie
        in memory as those did, however they are viewed: on their device, which must be the current
        one, and its current stream."""


def variants(
    kernel: Kernel, workload: Workload, config: Config, aligned: bool
) -> list[dict[str, Any]]:
    """What a kernel file has compiled for a config: its `variant`, then what its `prologue`, if it
    has one, says must run first."""
    module = kernel.module
    first = module.prologue(workload, config) if hasattr(module, "prologue") else None
    made = [module.variant(workload, config, aligned), first]
    return [each for each in made if each is not None]


def names() -> list[str]:
    """All languages: the modules in this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


@functools.cache  # each new shape of a call asks, and a language stays
def load(name: str) -> ModuleType:
    """The language of that name. Raises TunefaError for an unknown one."""
    if name not in names():
        raise unknown("language", name, names())
    return importlib.import_module(f"{__name__}.{name}")


def lacking(kernels: Sequence[Kernel], arch: Arch) -> dict[str, str]:
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
