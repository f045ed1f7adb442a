"""Attention in PyTorch, for the calls that no kernel serves, and the gradients of all calls.

The fused kernels inside PyTorch compute what they can: FlashAttention-2 on CUDA, its counterpart on
the CPU, and whatever scaled_dot_product_attention has for a CUDA device. The rest (soft-caps,
gradients of lse, other devices) is computed by the formulas in `tunefa.measure.reference` and
`tunefa.measure.gradients`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import pad

from tunefa.errors import TunefaError
from tunefa.measure import gradients as in_blocks
from tunefa.measure import reference, sdpa
from tunefa.measure.attention_inputs import E4M3, AttentionInputs
from tunefa.measure.gradients import Gradients
from tunefa.runtime import cpu_attention, cuda_attention
from tunefa.runtime.call import Call


def attention(call: Call) -> tuple[Tensor, Tensor]:
    """Returns (out, lse) of a call, of the shapes `call.out_shape` and `call.lse_shape`.

    A row that sees no key has out = 0 and lse = -inf. Where packed sequences are computed one after
    the other, it waits for the device, and raises TunefaError for sequences that are not within q,
    k and v, or longer than the call's max_seqlen.
    """
    if cuda_attention.serves(call):
        return cuda_attention.attention(call)
    if call.cu_seqlens is None:
        return _dense(call)
    out = call.q.new_zeros(call.out_shape, dtype=call.out_dtype)
    lse = call.q.new_full(call.lse_shape, float("-inf"), dtype=call.dtype)
    for rows, keys, one in call.sequences():
        _check_longest(call, rows, keys)
        made, made_lse = _dense(one)
        out[rows] = made[0].transpose(0, 1)
        lse[:, rows] = made_lse[0]
    return out, lse


def output(call: Call) -> Tensor:
    """Returns `out` alone, which scaled_dot_product_attention gives for more calls."""
    if call.cu_seqlens is None and not cuda_attention.serves(call):
        first = call.first_row
        seen = replace(call, q=call.q[:, :, first:])
        if _is_fused(seen):
            out = sdpa.dense(seen)
            return pad(out, (0, 0, first, 0)) if first else out
    return attention(call)[0]


def gradients(
    call: Call, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (dq, dk, dv), with the shapes of q, k and v.

    `out` and `lse` are what the call returned, `grad_out` and `grad_lse` their gradients; dense
    ones have heads first. Raises TunefaError as `attention` does.
    """
    # FlashAttention-2 adds up dq in no fixed order, unless PyTorch's own flag asks for one.
    in_order = not call.options.deterministic or torch.are_deterministic_algorithms_enabled()
    if grad_lse is None and in_order and cuda_attention.serves(call):
        return cuda_attention.gradients(call, out, lse, grad_out)
    given = Gradients(out, lse, grad_out, grad_lse)
    if call.cu_seqlens is None:
        return _dense_gradients(call, given)
    return in_blocks.of_sequences(call, given, _dense_gradients)


def _dense(inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
    if cpu_attention.serves(inputs):
        return cpu_attention.attention(inputs)
    return reference.attention(inputs)


def _dense_gradients(inputs: AttentionInputs, given: Gradients) -> tuple[Tensor, Tensor, Tensor]:
    if given.grad_lse is None and cpu_attention.serves(inputs):
        return cpu_attention.gradients(inputs, given.out, given.lse, given.grad_out)
    return in_blocks.gradients(inputs, given.out, given.lse, given.grad_out, given.grad_lse)


def _is_fused(inputs: AttentionInputs) -> bool:
    """Whether scaled_dot_product_attention has a kernel on CUDA for these dense inputs. Without
    one it writes out the scores of all heads."""
    if not inputs.q.is_cuda or inputs.empty or inputs.softcap is not None or inputs.q.dtype == E4M3:
        return False
    part = next(sdpa.parts(inputs))
    backend: int = torch.ops.aten._fused_sdp_choice.default(
        *(inputs.q[:, :, part.rows], inputs.k[:, :, part.keys], inputs.v[:, :, part.keys]),
        *(part.seen, 0.0, part.is_causal),
        scale=inputs.scale,
        enable_gqa=inputs.group > 1,
    )
    return backend > SDPBackend.MATH.value


def _check_longest(call: Call, rows: slice, keys: slice) -> None:
    """Raises TunefaError where a sequence is longer than the call says."""
    for name, given, of in (
        ("max_seqlen_q", call.options.max_seqlen_q, rows),
        ("max_seqlen_k", call.options.max_seqlen_k, keys),
    ):
        length = of.stop - of.start
        if length > given:
            raise TunefaError(
                f"{name} is at most {given} and a sequence is {length} long: give the "
                f"length of the longest sequence, or more"
            )
