"""The arguments of the ops in PyTorch's dispatcher: their schema, and a call's in their order.

The op `flash_attention` takes q, k, v, the tensors that a call may lack (None then), the options
and the scale. Its gradients take `OUTPUTS` before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunefa.runtime.call import Options, Tensors

TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? q_descale, Tensor? k_descale, Tensor? v_descale"
)
OPTIONS = (
    "bool causal, int? window_left, int? window_right, str layout, float? softcap, "
    "SymInt max_seqlen_q, SymInt max_seqlen_k, bool deterministic, str accumulate, float? scale"
)
OUTPUTS = "Tensor grad_out, Tensor? grad_lse, Tensor out, Tensor lse"
COUNT = TENSORS.count(",") + 1
"""The number of arguments that are tensors."""
OUTPUTS_COUNT = OUTPUTS.count(",") + 1


def flat(tensors: Tensors, options: Options, scale: float | None) -> tuple[Any, ...]:
    """Returns the arguments of `Runtime.ready` as the op takes them."""
    q, k, v, cu_seqlens, descales = tensors
    more = *(cu_seqlens or (None, None)), *(descales or (None, None, None))
    return q, k, v, *more, *options, scale


def split(arguments: Sequence[Any]) -> tuple[Tensors, Options, float | None]:
    """Turns the op's arguments into those of `Runtime.ready`."""
    q, k, v, starts_q, starts_k, *descales = arguments[:COUNT]
    given = tuple(descales) if any(each is not None for each in descales) else ()
    cu_seqlens = None if starts_q is None else (starts_q, starts_k)
    *options, scale = arguments[COUNT:]
    return Tensors(q, k, v, cu_seqlens, given), Options(*options), scale
