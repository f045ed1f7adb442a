"""The parameters of a CUDA C++ kernel: its host side gives their order and C types."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tunefa.compile.contract import CompileError
from tunefa.compile.launch.arguments import Descriptor, Parameter, Value, length, place, pointer
from tunefa.compile.launch.tensor_map import TensorMap

# CUtensorMapDataType and CUtensorMapSwizzle (cuda.h).
_TYPES = {"torch.float16": 6, "torch.float32": 7, "torch.bfloat16": 9, "torch.float8_e4m3fn": 0}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


def parameters(
    arguments: Sequence[Any], tensors: Sequence[Tensor]
) -> tuple[list[Parameter], list[Tensor]]:
    """Returns the parameters for `arguments`, and the tables: tensors that are not in `tensors`.

    Raises CompileError if an argument has a type that a launch cannot pass.
    """
    found: list[Parameter] = []
    tables: list[Tensor] = []
    for number, argument in enumerate(arguments):
        made = _parameter(argument, tensors, tables)
        if made is None:
            raise CompileError(f"argument {number} of its launch is {type(argument).__name__}")
        found += made
    return found, tables


def check_sizes(found: Sequence[Parameter], sizes: Sequence[int] | None) -> None:
    """Raises CompileError if the kernel has fewer parameters than `found`, or with other sizes.

    `sizes` are the kernel's, in bytes; None if they are not known.
    """
    given = [each.size for each in found]
    if sizes is not None and given != list(sizes):
        raise CompileError(f"its parameters have {list(sizes)} bytes, its arguments {given}")


def _parameter(
    argument: Any, tensors: Sequence[Tensor], tables: list[Tensor]
) -> list[Parameter] | None:
    if isinstance(argument, Tensor):
        return pointer(argument, tensors, tables)
    if isinstance(argument, tuple):
        return length(argument, tensors)
    if isinstance(argument, dict):
        return _descriptor(argument, tensors)
    if isinstance(argument, (ctypes._SimpleCData, ctypes.Structure)):
        return [Value(bytes(argument))]
    return None


def _descriptor(argument: dict[str, Any], tensors: Sequence[Tensor]) -> list[Parameter] | None:
    """Returns the CUtensorMap for a "map" argument; None if it is not of the call's tensors.

    Raises CompileError if panels do not divide the rows.
    """
    tensor = argument["map"]
    at = place(tensor, tensors)
    if at is None:
        return None
    map = TensorMap(
        dtype=_TYPES[str(tensor.dtype)],
        element_bytes=tensor.element_size(),
        shape=tuple(argument.get("shape", tensor.shape)),
        strides=tuple(argument.get("strides", tensor.stride())),
        box=tuple(argument["box"]),
        swizzle=_SWIZZLES[argument["swizzle_bytes"]],
        fill_nan=False,
        by_panels=argument.get("by_panels", False),
    )
    if map.by_panels and map.shape[-1] % map.box[-1]:
        raise CompileError(f"panels of {map.box[-1]} columns do not divide {map.shape[-1]}")
    return [Descriptor(at, map)]
