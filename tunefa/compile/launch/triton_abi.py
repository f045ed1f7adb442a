"""The parameters of a kernel that Triton compiled for an NVIDIA arch.

They are in the order of its signature, without the constants: a pointer; a number with the width of
its type; for a descriptor of the host, a CUtensorMap, its shape (32 bits each) and its strides (64
bits each). The pointers to global and to profiling scratch memory follow. Source: `make_launcher`
and `expand_signature` in backends/nvidia/driver.py of Triton 3.6 to 3.9. The sizes are compared
with those in the PTX.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from tunefa.compile.launch.arguments import Descriptor, Parameter, Value, length, place, pointer
from tunefa.compile.launch.prepared import Entry
from tunefa.compile.launch.tensor_map import TensorMap

_NUMBERS = {
    "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp32": "f", "fp64": "d",
}  # fmt: skip
_TENSOR_MAP_TYPES = {8: 10, 9: 8, 10: 9}
"""CUtensorMapDataType (cuda.h) by the compiler's number of a type, where the two differ: fp32
without denormals, fp64 and bf16 (as in Triton's backends/nvidia/driver.py)."""
_ENTRY = re.compile(r"\.entry\s+\w+\s*\((.*?)\)", re.DOTALL)
_PARAM = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)[^,\[]*(?:\[(\d+)\])?")
_NO_SCRATCH = Value(bytes(8))


def entry(binary: Any, device: int, grid: tuple[int, int, int]) -> Entry | None:
    """Returns the kernel of a loaded binary; None if only Triton's launcher can launch it."""
    made = binary.metadata
    if needs_triton(made):
        return None
    sizes = grid, 32 * made.num_warps, made.shared
    return Entry(device, binary.function, *sizes, binary, bool(made.launch_pdl))


def needs_triton(made: Any) -> bool:
    """Whether only Triton's launcher can launch a kernel with this metadata."""
    scratch = made.global_scratch_size + made.profile_scratch_size
    return bool(scratch or made.num_ctas != 1 or made.launch_cooperative_grid)


def parameters(
    binary: Any, arguments: Sequence[Any], tensors: Sequence[Tensor]
) -> tuple[list[Parameter], list[Tensor]] | None:
    """Returns the parameters for `arguments`, and the tables: tensors that are not in `tensors`.

    Returns None if an argument needs Triton's launcher, or if the sizes are not those in the PTX.
    """
    found: list[Parameter] = []
    tables: list[Tensor] = []
    maps = iter(getattr(binary.metadata, "tensordesc_meta", None) or ())
    for kind, argument in zip(binary.src.signature.values(), arguments, strict=True):
        if kind == "constexpr":
            continue
        if str(kind).startswith("tensordesc"):
            made = _descriptor(next(maps, None), argument, tensors)
        elif str(kind).startswith("*"):
            made = pointer(argument, tensors, tables)
        else:
            made = _number(kind, argument, tensors)
        if made is None:
            return None
        found += made
    found += [_NO_SCRATCH, _NO_SCRATCH]
    if tuple([each.size for each in found]) != _sizes(binary.asm["ptx"]):
        return None
    return found, tables


def sizes(ptx: str) -> Iterator[int]:
    """Yields the size in bytes of each parameter of the entry in `ptx`; none if it has no entry."""
    entry = _ENTRY.search(ptx)
    for bits, count in _PARAM.findall(entry[1] if entry else ""):
        yield int(bits) // 8 * int(count or 1)


def head(ptx: str) -> str:
    """Returns the part of `ptx` that `sizes` reads; "" if it has no entry."""
    entry = _ENTRY.search(ptx)
    return entry[0] if entry else ""


@functools.lru_cache(maxsize=64)  # each new length asks for them, and a PTX is long
def _sizes(ptx: str) -> tuple[int, ...]:
    return tuple(sizes(ptx))


def _number(kind: Any, argument: Any, tensors: Sequence[Tensor]) -> list[Parameter] | None:
    if isinstance(argument, tuple):
        return length(argument, tensors) if kind == "i32" else None
    form = _NUMBERS.get(kind) if isinstance(kind, str) else None
    return None if form is None else [Value(struct.pack(form, argument))]


def _descriptor(
    meta: dict[str, Any] | None, argument: Any, tensors: Sequence[Tensor]
) -> list[Parameter] | None:
    """Returns the parameters of a descriptor; None if only Triton's launcher can pass it.

    `meta` is the compiler's metadata of the descriptor; None if the kernel does not use TMA.
    """
    at = place(argument["map"], tensors) if isinstance(argument, dict) else None
    if at is None or meta is None or meta["fp4_padded"] or meta.get("is_im2col"):
        return None
    tensor, element = argument["map"], meta["elem_type"]
    map = TensorMap(
        dtype=_TENSOR_MAP_TYPES.get(element, element),
        element_bytes=meta["elem_size"],
        shape=tuple(argument.get("shape", tensor.shape)),
        strides=tuple(argument.get("strides", tensor.stride())),
        box=tuple(meta["block_size"]),
        swizzle=meta["swizzle"],
        fill_nan=False,
    )
    shape = [Value(struct.pack("i", size)) for size in map.shape]
    return [Descriptor(at, map), *shape, *(Value(struct.pack("q", s)) for s in map.strides)]
