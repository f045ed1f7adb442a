"""Dense attention on the CPU by PyTorch's fused kernels, which return logsumexp too.

They are what scaled_dot_product_attention calls on the CPU. They want one head_dim for q, k and v:
where head_dim_v differs, zeros are appended. Before PyTorch 2.9 they want as many KV heads as query
heads, and do not check it: so each KV head is a batch of its own here, and its query heads see it
through a stride of 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from tunefa.measure import sdpa
from tunefa.measure.attention_inputs import E4M3, AttentionInputs
from tunefa.measure.sdpa import Part

_MASKED_ROWS = 512
"""Query rows of one call that needs a mask."""


def serves(inputs: AttentionInputs) -> bool:
    """Whether PyTorch's kernels for the CPU compute these dense inputs."""
    return inputs.q.device.type == "cpu" and inputs.softcap is None and not inputs.empty


def attention(inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
    """Returns (out, lse) of dense inputs that `serves` accepts, as `reference.attention` does.

    The shapes are `inputs.out_shape` and `inputs.lse_shape`, the dtypes `inputs.out_dtype` and
    `inputs.dtype`. A row that sees no key has out = 0 and lse = -inf.
    """
    first = inputs.first_row
    batch, heads, seqlen_q, head_dim_v = inputs.out_shape
    # In memory heads are next to each other, as in most callers' tensors.
    out = inputs.q.new_zeros((batch, seqlen_q, heads, head_dim_v), dtype=inputs.out_dtype)
    out = out.transpose(1, 2)
    lse = inputs.q.new_full(inputs.lse_shape, float("-inf"), dtype=inputs.dtype)
    seen = _without_descales(replace(inputs, q=inputs.q[:, :, first:]))
    q, k, v = _as_kernels_take_them(seen, (seen.q,))
    for part, mask in _parts(seen):
        made, made_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
            *(q[:, :, part.rows], k[:, :, part.keys], v[:, :, part.keys], 0.0, part.is_causal),
            attn_mask=mask,
            scale=inputs.scale,
        )
        to = out[:, :, first:][:, :, part.rows], lse[:, :, first:][:, :, part.rows]
        to[0].copy_(made[..., :head_dim_v].reshape(to[0].shape))
        to[1].copy_(made_lse.reshape(to[1].shape))
    return out, lse


def gradients(
    inputs: AttentionInputs, out: Tensor, lse: Tensor, grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (dq, dk, dv) in `inputs.dtype`, with the shapes of q, k and v.

    `serves` accepts the inputs, which have no descales. `out` and `lse` are what `attention`
    returned, `grad_out` is the gradient of `out`.
    """
    first, batch = inputs.first_row, inputs.q.shape[0]
    dq, dk, dv = (torch.zeros_like(x, dtype=inputs.dtype) for x in (inputs.q, inputs.k, inputs.v))
    seen = replace(inputs, q=inputs.q[:, :, first:])
    of_rows = seen.q, grad_out[:, :, first:], out[:, :, first:]
    q, grad_out, out, k, v = _as_kernels_take_them(seen, of_rows)
    lse = _by_kv_head(lse[:, :, first:], inputs.group)
    for part, mask in _parts(seen):
        rows, keys = part.rows, part.keys
        made = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            *(grad_out[:, :, rows], q[:, :, rows], k[:, :, keys], v[:, :, keys], out[:, :, rows]),
            *(lse[:, :, rows], 0.0, part.is_causal),
            attn_mask=mask,
            scale=inputs.scale,
        )
        to = dq[:, :, first:][:, :, rows]
        to.copy_(made[0][..., : to.shape[-1]].reshape(to.shape))
        for grad, shared in ((dk, made[1]), (dv, made[2])):
            if inputs.group > 1:
                shared = shared.sum(1, dtype=inputs.dtype).unflatten(0, (batch, -1))
            grad[:, :, keys] += shared[..., : grad.shape[-1]]
    return dq, dk, dv


def _without_descales(inputs: AttentionInputs) -> AttentionInputs:
    """Returns e4m3 inputs in fp32, multiplied by their descales, and others unchanged."""
    if inputs.q.dtype != E4M3:
        return inputs
    tensors = [x.float() for x in (inputs.q, inputs.k, inputs.v)]
    for x, descale in zip(tensors, inputs.descales, strict=bool(inputs.descales)):
        if descale.numel():
            x.mul_(descale.repeat_interleave(x.shape[1] // descale.shape[1], 1)[..., None, None])
    q, k, v = tensors
    return replace(inputs, q=q, k=k, v=v, descales=())


def _as_kernels_take_them(
    inputs: AttentionInputs, of_rows: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Returns `of_rows`, which have the rows and heads of q, then k and v: of one head_dim, with
    contiguous rows, each KV head a batch of its own if query heads share it."""
    group = inputs.group
    width = max(inputs.q.shape[-1], inputs.v.shape[-1])
    rows = [_by_kv_head(_padded(x, width), group) for x in of_rows]
    k, v = (_padded(x, width) for x in (inputs.k, inputs.v))
    if group > 1:
        k, v = (x.flatten(0, 1)[:, None].expand(-1, group, -1, -1) for x in (k, v))
    return *rows, k, v


def _by_kv_head(x: Tensor, group: int) -> Tensor:
    """(batch, heads, rows, ...) as (batch * heads_kv, group, rows, ...) if KV heads are shared."""
    return x if group == 1 else x.reshape(-1, group, *x.shape[2:])


def _padded(x: Tensor, width: int) -> Tensor:
    """Returns x with rows that are contiguous and `width` long; zeros are appended."""
    if x.shape[-1] < width:
        x = pad(x, (0, width - x.shape[-1]))  # which may keep heads innermost (channels_last)
    return x if x.stride(-1) == 1 else x.contiguous()


def _parts(inputs: AttentionInputs) -> Iterator[tuple[Part, Tensor | None]]:
    """Yields the parts to compute, and their masks in q's dtype, which are added to the scores."""
    for part in sdpa.parts(inputs, _MASKED_ROWS):
        mask = None
        if part.seen is not None:
            mask = torch.zeros(part.seen.shape, dtype=inputs.q.dtype)
            mask.masked_fill_(~part.seen, float("-inf"))
        yield part, mask
