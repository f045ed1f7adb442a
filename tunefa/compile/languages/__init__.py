"""Languages compile the configs of a case, without a device, and launch them on a device.

A language is a module in this folder, found by its file name, with these functions:

* `compile(case, config, aligned=True) -> Compiled`: raises CompileError;
* `binary_key(case, config, aligned) -> Hashable`: equal if the binaries are equal, also for
  workloads of different lengths. For attention it depends on the lengths by what divides them alone
  (tests/contracts/test_families.py);
* `prepare(spec, compiled, tensors) -> Launch`: prepares a launch of a LaunchSpec on the tensors'
  device, also while a CUDA graph is captured; raises CompileError if the device lacks resources;
* `interpret(spec, tensors)`: runs the kernel on the CPU, to check numerics; missing if the language
  has no interpreter;
* `why_no_interpreter() -> str | None`: why there is none, or why it does not run with the installed
  versions; None if it runs;
* `why_no_compiler(arch) -> str | None`: why it cannot compile for an arch, and what to do about
  it; None if it can, or if only `compile` finds out;
* `versions() -> dict[str, str | None]`: the versions of its toolchain, for provenance; or, where
  they differ from kernel to kernel, `versions_of(kernel)`;
* `why_not_installed(kernel) -> str | None`: why what a kernel needs is not installed; missing if
  the compiler is all that its kernels need;
* `quick_versions() -> dict[str, str | None]`: those of them that tell toolchains apart, without
  importing a compiler; None for what is not installed; missing if `versions` is as quick;
* `stored(binary) -> (bytes, data)` and `restored(bytes, data) -> binary`: a binary as a cubin and
  plain data for a bundle, and what `prepare` takes in its place, without a compiler; `stored`
  raises CompileError for a binary that only the compiler's own launcher starts; missing where a
  bundle cannot hold the language's kernels;
* `trial_key(case, config) -> Hashable`: equal for configs that must have equal trials, before they
  are compiled; missing if there are no such configs.

`tunefa.compile.contract` has the types. A variant of a kernel is what is compiled for a config. The
aligned variant may assume that the rows of tensors begin at multiples of 16 bytes or more; the
kernel's `is_aligned` has the exact condition. The other variant assumes nothing.
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
    """Returns the names of all languages: the modules in this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


@functools.cache  # each call with a new shape needs it
def load(name: str) -> ModuleType:
    """Returns the language with that name. Raises TunefaError if there is none."""
    if name not in names():
        raise unknown("language", name, names())
    return importlib.import_module(f"{__name__}.{name}")


def without_compiler(kernels: Sequence[Kernel], arch: Arch) -> dict[str, str]:
    """Returns the kernels that what is installed cannot compile for `arch`, with reasons."""
    asked = {name: load(name) for name in {kernel.language for kernel in kernels}}
    reasons = {
        name: language.why_no_compiler(arch)
        for name, language in asked.items()
        if hasattr(language, "why_no_compiler")
    }
    found = {k.name: why for k in kernels if (why := reasons.get(k.language)) is not None}
    for kernel in kernels:
        why_not = getattr(asked[kernel.language], "why_not_installed", None)
        if why_not is not None and (why := why_not(kernel)) is not None:
            found[kernel.name] = why
    return found


def without_binary(kernels: Sequence[Kernel]) -> dict[str, str]:
    """Returns the kernels that call a library, with the reason why they need a device."""
    return {k.name: load(k.language).why_no_binary(k) for k in kernels if k.is_library}


def has_interpreter(name: str) -> bool:
    """Returns whether the language has an interpreter, even if it does not run here."""
    return hasattr(load(name), "interpret")
