"""FLOPs of the ops, for `torch.utils.flop_counter.FlopCounterMode`.

They are those that PyTorch counts for scaled_dot_product_attention: all scores, also those that a
mask hides, and query heads that share a KV head one by one. So counts of the two compare. The
gradients take five matmuls where the output takes two. Packed sequences are counted one by one, by
their lengths, or by max_seqlen where the lengths are not known (fake and meta tensors).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import flop_counter
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tunefa.runtime.call import LAYOUTS, PACKED
from tunefa.runtime.op_arguments import OUTPUTS_COUNT, split

_Shape = tuple[int, int, int, int]
"""(batch, heads, rows, width)."""


def teach_active_counters() -> None:
    """Gives the formulas to the counters that are active; importing this module gives them to all
    counters that are made afterwards."""
    for mode in _get_current_dispatch_mode_stack():
        counter = getattr(mode, "counter", None)
        if isinstance(counter, flop_counter.FlopCounterMode):
            for op in _FORMULAS:
                counter.flop_registry.setdefault(op, flop_counter.flop_registry[op])


def _forward(*arguments: Any, **_: Any) -> int:
    count: Any = flop_counter.sdpa_flop_count  # it has no types
    total = 0
    for q, k, v in _shapes(arguments):
        total += count(q, k, v)
    return total


def _backward(*arguments: Any, **_: Any) -> int:
    count: Any = flop_counter.sdpa_backward_flop_count
    total = 0
    for q, k, v in _shapes(arguments[OUTPUTS_COUNT:]):
        total += count((*q[:3], v[3]), q, k, v)
    return total


def _shapes(arguments: tuple[Any, ...]) -> Iterator[tuple[_Shape, _Shape, _Shape]]:
    """Yields the shapes of q, k and v of each sequence, or of the dense batch; k and v have as many
    heads as q, which PyTorch's formulas want before version 2.10."""
    (q, k, v, cu_seqlens, _), options, _ = split(arguments)
    if options.layout != PACKED:
        rows = LAYOUTS[options.layout].strip("()").split(", ").index("seqlen")
        lengths = [(q.shape[rows], k.shape[rows])]
        batch, heads = q.shape[0], q.shape[3 - rows]
    else:
        assert cu_seqlens is not None
        batch, heads = 1, q.shape[1]
        of_q = _lengths(cu_seqlens[0], options.max_seqlen_q)
        lengths = list(zip(of_q, _lengths(cu_seqlens[1], options.max_seqlen_k), strict=True))
    for seqlen_q, seqlen_k in lengths:
        of_rows = (batch, heads, seqlen_q, q.shape[-1])
        of_keys = (batch, heads, seqlen_k)
        yield of_rows, (*of_keys, q.shape[-1]), (*of_keys, v.shape[-1])


def _lengths(cu_seqlens: Tensor, longest: int) -> list[int]:
    if isinstance(cu_seqlens, FakeTensor) or cu_seqlens.is_meta:
        return [longest] * (cu_seqlens.shape[0] - 1)
    lengths: list[int] = cu_seqlens.diff().tolist()
    return lengths


_FORMULAS = {
    torch.ops.tunefa.flash_attention: _forward,
    torch.ops.tunefa.flash_attention_backward: _backward,
}
for _op, _formula in _FORMULAS.items():
    flop_counter.register_flop_formula(_op, get_raw=True)(_formula)
