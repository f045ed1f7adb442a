"""TMA additions to global memory, which Gluon has under that name from Triton 3.9 on."""

from triton._C.libtriton import ir
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import tma


@builtin
def _reduce_add(desc, coordinates, tile, _semantic=None):
    """Adds a tile by `cp.reduce.async.bulk.tensor` (PTX ISA), through the compiler's builder."""
    coordinates = _semantic._convert_to_ir_values(coordinates, require_i64=False)
    kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
    _semantic.builder.create_async_tma_reduce(kind, desc.handle, coordinates, tile.handle)


add_out = getattr(tma, "async_atomic_add", None) or _reduce_add
"""Starts to add a tile in shared memory to the tensor of a descriptor at some coordinates.

`tma.store_wait` waits until the tile was read. Additions of several CTAs have no fixed order.
"""
