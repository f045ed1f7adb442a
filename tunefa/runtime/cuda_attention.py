"""The FlashAttention-2 inside PyTorch, for dense and packed sequences on CUDA.

It computes calls that no kernel of tunefa serves, and the gradients of all calls that it serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tunefa.compile.launch import driver
from tunefa.runtime.call import Call


def serves(call: Call) -> bool:
    """Whether FlashAttention-2 computes the call, forward and backward."""
    return takes(call) and flash_serves(call.q, call.v, call.scale)


def flash_serves(q: Tensor, v: Tensor, scale: float) -> bool:
    """Whether PyTorch's FlashAttention-2 has a backward pass for such q, v and scale."""
    head_dim = q.shape[-1]
    if not (
        q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16)
        and head_dim == v.shape[-1]
        and head_dim % 8 == 0
        and head_dim <= 256
        and scale > 0
        and torch.backends.cuda.is_flash_attention_available()
    ):
        return False
    capability = driver.device(q.get_device()).compute_capability
    # Its backward for head_dim > 192 needs more shared memory than sm86, sm89 and sm120 have.
    return capability >= (8, 0) and (head_dim <= 192 or (capability[1] == 0 and capability[0] < 12))


def takes(call: Call) -> bool:
    """Whether FlashAttention-2 computes this mask: it has no soft-cap, and a window of more than
    seqlen_k keys on one side means all keys there.

    Beyond the diagonal that is right only where there are no more queries than keys. The lengths of
    packed sequences are known on the device only.
    """
    if call.empty or call.softcap is not None:
        return False
    if call.causal or call.band == (None, None):
        return True
    return call.cu_seqlens is None and call.q.shape[2] <= call.k.shape[2]


def attention(call: Call) -> tuple[Tensor, Tensor]:
    """Returns (out, lse) of a call that `serves` accepts; dense `out` has heads first.

    A row that sees no key has out = 0 and lse = -inf. Rows that belong to no packed sequence are
    not written.
    """
    if call.cu_seqlens is not None:
        longest = call.options.max_seqlen_q, call.options.max_seqlen_k
        out, lse = _aten_attention(call, call.q, (*call.cu_seqlens, *longest))
        return out, lse.masked_fill(lse.isposinf(), float("-inf"))
    first = call.first_row
    q = call.q[:, :, first:].transpose(1, 2)
    out, lse = _aten_attention(call, q, (None, None, q.shape[1], call.k.shape[2]))
    out = out.transpose(1, 2)
    if first:
        out, lse = pad(out, (0, 0, first, 0)), pad(lse, (first, 0), value=float("-inf"))
    return out, lse


def gradients(
    call: Call, out: Tensor, lse: Tensor, grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs aten::_flash_attention_backward, whose causal and window arguments mean the same.

    Dense `out` and `grad_out` have heads first. Rows that see no key have an lse of -inf, and would
    give NaN there. Dense tensors are passed without these rows; for packed ones, an lse of inf
    makes the probabilities of these rows 0.
    """
    if call.cu_seqlens is not None:
        lse = lse.masked_fill(lse.isneginf(), float("inf"))
        longest = call.options.max_seqlen_q, call.options.max_seqlen_k
        of_packed = (*call.cu_seqlens, *longest)
        grads = _aten_gradients(call, (grad_out.contiguous(), call.q, out), lse, of_packed)
        starts_q, starts_k = call.cu_seqlens
        dq, dk, dv = map(_within, grads, (starts_q, starts_k, starts_k))
        return dq, dk, dv
    first = call.first_row
    of_rows = [x[:, :, first:].transpose(1, 2) for x in (grad_out, call.q, out)]
    sizes = (None, None, of_rows[0].shape[1], call.k.shape[2])
    grads = _aten_gradients(call, of_rows, lse[:, :, first:].contiguous(), sizes)
    dq, dk, dv = (grad.transpose(1, 2) for grad in grads)
    return (pad(dq, (0, 0, first, 0)) if first else dq), dk, dv


def _aten_attention(call: Call, q: Tensor, sizes: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Returns (out, lse) by aten::_flash_attention_forward; rows that see no key have an lse of
    inf.

    q and out are (batch, seqlen, heads, head_dim), or packed; `sizes` are those of
    `_aten_gradients`.
    """
    k, v, left, right = _keys(call)
    no_dropout, no_debug_mask = 0.0, False
    out, lse, *_ = torch.ops.aten._flash_attention_forward.default(
        *(_readable(q), k, v, *sizes, no_dropout, call.causal, no_debug_mask),
        scale=call.scale,
        window_size_left=left,
        window_size_right=right,
    )
    return out, lse


def _aten_gradients(
    call: Call, of_rows: Sequence[Tensor], lse: Tensor, sizes: tuple[Any, ...]
) -> Sequence[Tensor]:
    """Returns (dq, dk, dv); they and `of_rows` = (grad_out, q, out) are (batch, seqlen, heads,
    head_dim), or packed.

    `sizes` are the op's cu_seqlens, None where dense, and the lengths of the longest sequences. The
    op does not write the gradients of rows and keys that belong to no packed sequence.
    """
    grad_out, q, out = map(_readable, of_rows)
    k, v, left, right = _keys(call)
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device)
    grads: Sequence[Tensor] = torch.ops.aten._flash_attention_backward.default(
        *(grad_out, q, k, v, out, lse, *sizes),
        *(0.0, call.causal, no_dropout, no_dropout.new_empty(0)),
        scale=call.scale,
        window_size_left=left,
        window_size_right=right,
    )
    return grads


def _keys(call: Call) -> tuple[Tensor, Tensor, int | None, int | None]:
    """Returns k and v, (batch, seqlen, heads, head_dim) or packed, and both sides of the window."""
    dense = call.cu_seqlens is None
    k, v = (_readable(x.transpose(1, 2) if dense else x) for x in (call.k, call.v))
    # PyTorch converts them to C's int, which may be too small for a window's number of keys.
    left, right = (None if side is None else min(side, k.shape[-3] - 1) for side in call.band)
    return k, v, left, right


def _readable(x: Tensor) -> Tensor:
    """Returns x, or a copy where FlashAttention-2 cannot read it: it reads 16 bytes at a time."""
    aligned = x.data_ptr() % 16 == 0 and all(step % 8 == 0 for step in x.stride()[:-1])
    if aligned and x.stride(-1) == 1:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _within(grad: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Returns `grad` with 0 in the rows that belong to no sequence."""
    row = torch.arange(grad.shape[0], device=grad.device)
    outside = (row < cu_seqlens[0]) | (row >= cu_seqlens[-1])
    return grad.masked_fill(outside[:, None, None], 0.0)
