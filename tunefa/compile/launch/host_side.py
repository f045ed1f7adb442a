"""Prepares the launches of a config, with any preprocess and postprocess kernels, for all languages
on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from tunefa.compile.contract import Compiled, CompileError, Launch, LaunchSpec
from tunefa.compile.launch import driver
from tunefa.compile.launch.prepared import PreparedLaunch, apart
from tunefa.compile.launch.steps import Steps, new_scratch

Arguments = Callable[[Sequence[Tensor]], tuple[tuple[int, int, int], Sequence[Any]]]
"""A function from a call's tensors to (grid, arguments) of one kernel."""
Start = Callable[[Any, Arguments, Sequence[Tensor]], Launch]
"""A language's function from (binary, its Arguments, tensors) to a prepared launch.

It raises CompileError if the device lacks resources for the binary.
"""


def prepared(
    spec: LaunchSpec, compiled: Compiled, tensors: Sequence[Tensor], start: Start
) -> Launch:
    """Prepares a launch on `tensors` (see a kernel's `arguments`), or tensors of their layout.

    Loads the binary, apart from the caller's stream and graph capture. Raises CompileError if the
    device lacks resources for it.
    """
    spec = replace(spec, seen_sms=driver.device(tensors[0].get_device()).sms)
    # Tensors are compared by identity, so a tensor that is passed as both k and v must become two.
    tensors = [tensor.detach() for tensor in tensors]

    def launch() -> Launch:
        is_alone = compiled.preprocess is None and compiled.postprocess is None
        if not spec.has_scratch(is_alone):  # then it may be a launch of any launcher
            return start(compiled.binary, spec.arguments, tensors)
        scratch = spec.scratch(tensors)
        all_tensors = [*tensors, *new_scratch(scratch, tensors[0])]
        in_order = [
            (compiled.preprocess, spec.preprocess_arguments),
            (compiled.binary, spec.arguments),
            (compiled.postprocess, spec.postprocess_arguments),
        ]
        steps = [
            start(binary, host_side, all_tensors)
            for binary, host_side in in_order
            if binary is not None
        ]
        found = [step for step in steps if isinstance(step, PreparedLaunch)]
        if len(found) < len(steps):
            raise CompileError(
                "its launch needs its language's launcher, which starts only a kernel that has no "
                "other kernel beside it"
            )
        return Steps(found, scratch)

    if spec.tables is not None and compiled.preprocess is None:
        return launch()  # nothing is loaded, and what is made for it is made apart
    return apart(tensors[0].get_device(), launch)
