"""The launches that an interpreter runs for a call: the kernel, and those around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from tunefa.compile.contract import LaunchSpec, variants
from tunefa.compile.launch.prepared import new_scratch


def steps(spec: LaunchSpec, tensors: Sequence[Tensor]) -> Iterator[tuple[Any, Any, Sequence[Any]]]:
    """Yields (variant, grid, arguments) of each launch of a call on `tensors`, in their order.

    They share new scratch memory, if the kernel asks for some.
    """
    main, *others = variants(spec.case, spec.config, spec.case.kernel.module.is_aligned(tensors))
    if not others:
        yield main, *spec.arguments(tensors)
        return
    shared = [*tensors, *new_scratch(spec.scratch(tensors), tensors[0])]
    yield others[0], *spec.preprocess_arguments(shared)
    yield main, *spec.arguments(shared)
    for last in others[1:]:
        yield last, *spec.postprocess_arguments(shared)
