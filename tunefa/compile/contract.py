"""The types that languages, launches and their callers share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Outcome, Resources
from tunefa.spec.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor


Tables = Callable[[Hashable, Callable[[], Any]], Any]
"""Returns the tables under a key, and makes them with the function if there are none yet."""


class CompileError(Exception):
    """A config does not compile. In a search this is expected, and becomes a trial."""

    def __init__(
        self,
        reason: str,
        outcome: Outcome = "compile_failed",
        resources: Resources | None = None,
    ) -> None:
        """`resources`: what the config needs, if the compiler reports it with the error."""
        super().__init__(reason)
        self.outcome = outcome
        self.resources = resources


@dataclass(frozen=True)
class Compiled:
    """One config, compiled for one target."""

    binary: Any
    """The binary that the language's `prepare` takes."""
    inspect: Callable[[], Resources]
    seconds: float
    """The time for compiling, in s; nearly 0 if the binary was in the language's cache."""
    preprocess: Any = None
    """The binary of the kernel that each call launches first; None if there is none."""
    postprocess: Any = None
    """The binary of the kernel that each call launches last; None if there is none."""

    @functools.cached_property
    def resources(self) -> Resources:
        """The resources of one CTA. They are read on demand, which takes tens of ms."""
        return self.inspect()


class Launch(Protocol):
    """A kernel that is ready to start on tensors of one layout. Threads may share it.

    It may have a property `key`, which is equal for launches of one program that do the same; and,
    where a library allocates its own outputs, a method `results`, which returns them and copies
    nothing.
    """

    @property
    def device_bytes(self) -> int:
        """Device memory that it holds, in bytes."""

    def __call__(self, *tensors: Tensor) -> None:
        """Starts the kernel on the current stream of the tensors' device, the current device.

        The tensors are q, k, v, out, lse and perhaps others: as many as it was prepared for, with
        the same layout in memory.
        """


@dataclass(frozen=True)
class LaunchSpec:
    """A config of a case, with all that the host side of a kernel needs to launch it."""

    case: Case
    config: Config
    scale: float
    """The factor of q @ k^T; positive."""
    softcap: float | None = None
    """The bound c of the scores if `workload.softcap`, else None."""
    seen_sms: int | None = None
    """SMs of the device that it is launched on; None without a device."""
    tables: Tables | None = None
    """The function that keeps tables for launches that need the same; None where each makes its
    own. With it, the binary is loaded."""

    @property
    def workload(self) -> Workload:
        """The workload of the case."""
        return self.case.workload

    @property
    def sms(self) -> int:
        """SMs of the device that it is launched on; without one, of the case's device."""
        return self.case.device.sms if self.seen_sms is None else self.seen_sms

    def table(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns `make()`, tensors on the device that are equal for equal keys. The caller makes
        them where nothing is kept."""
        return make() if self.tables is None else self.tables(key, make)

    def arguments(self, tensors: Sequence[Tensor]) -> Any:
        """Returns (grid, arguments) of the kernel."""
        return self.case.kernel.module.arguments(tensors, self)

    def preprocess_arguments(self, tensors: Sequence[Tensor]) -> Any:
        """Returns (grid, arguments) of the preprocess kernel, which runs first in each call."""
        return self.case.kernel.module.preprocess_arguments(tensors, self)

    def postprocess_arguments(self, tensors: Sequence[Tensor]) -> Any:
        """Returns (grid, arguments) of the postprocess kernel, which runs last in each call."""
        return self.case.kernel.module.postprocess_arguments(tensors, self)

    def scratch(self, tensors: Sequence[Tensor]) -> Any:
        """Returns shapes and dtypes of the memory that the kernels of a call share."""
        return self.case.kernel.module.scratch(tensors, self)

    def has_scratch(self, is_alone: bool) -> bool:
        """Returns whether a call needs that memory: with a preprocess or a postprocess kernel it
        does, and `is_alone`, without both, if the kernel's module has SCRATCH_ALONE = True."""
        return not is_alone or getattr(self.case.kernel.module, "SCRATCH_ALONE", False) is True


def variants(case: Case, config: Config, aligned: bool) -> dict[str, dict[str, Any]]:
    """Returns what is compiled for a config: the kernel's variant as "binary", then "preprocess"
    and "postprocess", as far as the kernel has them for this config. The names are those of
    `Compiled`'s fields."""
    module, workload = case.kernel.module, case.workload
    made = {"binary": module.variant(workload, config, aligned)}
    for step in ("preprocess", "postprocess"):
        found = getattr(module, step)(workload, config) if hasattr(module, step) else None
        if found is not None:
            made[step] = found
    return made


def unread(kernel: Kernel) -> tuple[str, ...]:
    """Returns the names of inputs that a kernel does not read, and takes for zeros: "dlse" for a
    library without a gradient of the logsumexp. It serves no call in which they are something
    else. Most kernels read all."""
    return tuple(getattr(kernel.module, "UNREAD", ()))


def unordered(case: Case, config: Config) -> tuple[str, ...]:
    """Returns the outputs that a config adds up in no fixed order, so that equal inputs may give
    different last bits; most kernels have none."""
    module = case.kernel.module
    if not hasattr(module, "unordered"):
        return ()
    return tuple(module.unordered(case.workload, config))
