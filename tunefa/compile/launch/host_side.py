"""Launches of one config as its kernel file's host side asks for them, whatever the language."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from tunefa.compile.contract import Compiled, CompileError, Launch, LaunchSpec
from tunefa.compile.launch import driver
from tunefa.compile.launch.prepared import PreparedLaunch, Steps, apart, new_scratch

Arguments = Callable[[Sequence[Tensor]], tuple[tuple[int, int, int], Sequence[Any]]]
"""(grid, arguments) of one kernel, for a call's tensors."""
Start = Callable[[Any, Arguments, Sequence[Tensor]], Launch]
"""A language's launch of a binary on tensors like these. Raises CompileError as `prepared`."""


def prepared(
    spec: LaunchSpec, compiled: Compiled, tensors: Sequence[Tensor], start: Start
) -> Launch:
    """A launch on `tensors` (see a kernel's `arguments`) or others like them.

    Loads the binary, past the caller's stream and capture. Raises CompileError when the device has
    too little of something for it.
    """
    spec = replace(spec, seen_sms=driver.device(tensors[0].get_device()).sms)
    # Tensors are told apart by identity, and a caller may pass one as both k and v.
    tensors = [tensor.detach() for tensor in tensors]

    def launch() -> Launch:
        if compiled.preprocess is None:
            return start(compiled.binary, spec.arguments, tensors)
        scratch = spec.scratch(tensors)
        both = [*tensors, *new_scratch(scratch, tensors[0])]
        steps = [
            start(compiled.preprocess, spec.preprocess_arguments, both),
            start(compiled.binary, spec.arguments, both),
        ]
        if not all(isinstance(step, PreparedLaunch) for step in steps):
            raise CompileError("its launch needs what only its language's own launcher does")
        return Steps(steps, scratch)

    return apart(tensors[0].get_device(), launch)
