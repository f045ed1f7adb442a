"""The launches that an interpreter runs for a call: the kernel, and those around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from tunefa.compile.contract import LaunchSpec, variants
from tunefa.compile.launch.steps import new_scratch


def steps(spec: LaunchSpec, tensors: Sequence[Tensor]) -> Iterator[tuple[Any, Any, Sequence[Any]]]:
    """Yields (variant, grid, arguments) of each launch of a call on `tensors`, in their order.

    They share new scratch memory, if the kernel asks for some.
    """
    made = variants(spec.case, spec.config, spec.case.kernel.module.is_aligned(tensors))
    shared = list(tensors)
    if spec.has_scratch(is_alone=len(made) == 1):
        shared += new_scratch(spec.scratch(tensors), tensors[0])
    if "preprocess" in made:
        yield made["preprocess"], *spec.preprocess_arguments(shared)
    yield made["binary"], *spec.arguments(shared)
    if "postprocess" in made:
        yield made["postprocess"], *spec.postprocess_arguments(shared)
