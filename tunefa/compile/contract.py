"""What compiling gives: the types that languages, launches and their callers share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Outcome, Resources
from tunefa.spec.workload import Workload

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
    preprocess: Any = None
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


@dataclass(frozen=True)
class LaunchSpec:
    """One config of a case as it is launched: what the host side of a kernel is given."""

    case: Case
    config: Config
    scale: float
    """What q @ k^T is multiplied by; positive."""
    softcap: float | None = None
    """The bound of the scores where `workload.softcap`, else None."""
    seen_sms: int | None = None
    """SMs of the device that it is launched on; None where no device was asked."""

    @property
    def workload(self) -> Workload:
        """The case's."""
        return self.case.workload

    @property
    def sms(self) -> int:
        """SMs of the device that it is launched on, or without one of the case's device."""
        return self.case.device.sms if self.seen_sms is None else self.seen_sms

    def arguments(self, tensors: Sequence[Tensor]) -> Any:
        """(grid, arguments) of the kernel itself."""
        return self.case.kernel.module.arguments(tensors, self)

    def preprocess_arguments(self, tensors: Sequence[Tensor]) -> Any:
        """(grid, arguments) of what runs first in each call."""
        return self.case.kernel.module.preprocess_arguments(tensors, self)

    def scratch(self, tensors: Sequence[Tensor]) -> Any:
        """Shapes and dtypes of the memory that the two kernels share in a call."""
        return self.case.kernel.module.scratch(tensors, self)


def variants(case: Case, config: Config, aligned: bool) -> list[dict[str, Any]]:
    """What a kernel file wants compiled for a config: its `variant` and, if any, `preprocess`."""
    module, workload = case.kernel.module, case.workload
    first = module.preprocess(workload, config) if hasattr(module, "preprocess") else None
    made = [module.variant(workload, config, aligned), first]
    return [each for each in made if each is not None]
