"""PyTorch's scaled_dot_product_attention on the inputs that kernels are checked with.

Its error is the yardstick for theirs, see `tunefa.measure.check.Gate`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tunefa.measure.attention_inputs import AttentionInputs, batch_of_one

_MASKED_ROWS = 1024
"""Query rows of one call where PyTorch needs a mask."""


def write(inputs: AttentionInputs, out: Tensor) -> None:
    """Writes PyTorch's output into `out`, of the shape `inputs.out_shape`; packed sequences one by
    one.

    The inputs must have neither a soft-cap nor descales.
    """
    if inputs.cu_seqlens is None:
        out.copy_(_dense(inputs))
        return
    for rows, _, one in inputs.sequences():
        batch_of_one(out[rows]).copy_(_dense(one))


def _dense(inputs: AttentionInputs) -> Tensor:
    """The output of dense inputs, (batch, heads, seqlen_q, head_dim_v).

    PyTorch's own causal mask is aligned to the top left, so only square ones are given by its flag.
    Few of its backends take a mask with grouped heads, and the one that does writes out all scores.
    So inputs that need a mask are computed in blocks of rows, each with the keys that they see.
    """
    q, k, v = inputs.q, inputs.k, inputs.v
    grouped, (left, right) = inputs.group > 1, inputs.band
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    square = inputs.causal and seqlen_q == seqlen_k
    if left is None and (right is None or square):
        return scaled_dot_product_attention(
            q, k, v, is_causal=inputs.causal, scale=inputs.scale, enable_gqa=grouped
        )
    outs = []
    for start in range(0, seqlen_q, _MASKED_ROWS):
        rows = q[:, :, start : start + _MASKED_ROWS]
        diagonal = start + seqlen_k - seqlen_q
        first = 0 if left is None else max(0, diagonal - left)
        end = seqlen_k
        if right is not None:
            end = min(end, max(first + 1, diagonal + right + rows.shape[2]))
        keys = slice(first, end)
        mask = torch.ones(rows.shape[2], end - first, dtype=torch.bool, device=q.device)
        if right is not None:
            mask = mask.tril(diagonal + right - first)
        if left is not None:
            mask = mask.triu(diagonal - left - first)
        part = scaled_dot_product_attention(
            *(rows, k[:, :, keys], v[:, :, keys]),
            attn_mask=mask,
            scale=inputs.scale,
            enable_gqa=grouped,
        )
        outs.append(part)
    return torch.cat(outs, dim=2)
