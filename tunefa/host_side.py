"""Launches of one config as its kernel file's host side asks for them, whatever the language."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor

from tunefa.languages import Compiled, CompileError, Launch
from tunefa.launch import PreparedLaunch, Steps, apart, new_scratch
from tunefa.trial import Config
from tunefa.workload import Workload

Arguments = Callable[[Sequence[Tensor]], tuple[tuple[int, int, int], Sequence[Any]]]
"""(grid, arguments) of one kernel, for a call's tensors."""
Start = Callable[[Any, Arguments, Sequence[Tensor]], Launch]
"""A language's launch of a binary on tensors like these. Raises CompileError as `prepared`."""


@dataclass(frozen=True)
class HostSide:
    """What a kernel file says of launching one config."""

    module: ModuleType
    workload: Workload
    config: Config
    scale: float
    softcap: float | None = None
    """The bound of the scores where `workload.softcap`, else None."""

    def arguments(self, tensors: Sequence[Tensor]) -> Any:
        """(grid, arguments) of the kernel itself."""
        bound = () if self.softcap is None else (self.softcap,)
        return self.module.arguments(tensors, self.workload, self.config, self.scale, *bound)

    def first(self, tensors: Sequence[Tensor]) -> Any:
        """(grid, arguments) of what runs first in each call."""
        return self.module.prologue_arguments(tensors, self.workload, self.config)


def prepared(side: HostSide, compiled: Compiled, tensors: Sequence[Tensor], start: Start) -> Launch:
    """A launch on `tensors` (see a kernel's `arguments`) or others like them.

    Loads the binary, past the caller's stream and capture. Raises CompileError when the device has
    too little of something for it.
    """
    # Tensors are told apart by identity, and a caller may pass one as both k and v.
    tensors = [tensor.detach() for tensor in tensors]

    def launch() -> Launch:
        if compiled.prologue is None:
            return start(compiled.binary, side.arguments, tensors)
        scratch = side.module.scratch(tensors, side.workload, side.config)
        both = [*tensors, *new_scratch(scratch, tensors[0])]
        steps = [
            start(compiled.prologue, side.first, both),
            start(compiled.binary, side.arguments, both),
        ]
        if not all(isinstance(step, PreparedLaunch) for step in steps):
            raise CompileError("its launch needs what only its language's own launcher does")
        return Steps(steps, scratch)

    return apart(tensors[0].get_device(), launch)
