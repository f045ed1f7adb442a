"""PyTorch's scaled_dot_product_attention on the inputs of one attention.

Its error is the yardstick for that of kernels, see `tunefa.measure.gate.Gate`, and the runtime
computes calls with it that no kernel serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tunefa.measure.attention_inputs import AttentionInputs, batch_of_one

_MASKED_ROWS = 1024
"""Query rows of one call where PyTorch needs a mask."""
_MASK_ELEMENTS = 2**24
"""Elements of a mask that is in memory, 64 MiB in fp32; one row may have more."""


class Part(NamedTuple):
    """Consecutive rows of dense inputs, for one call of PyTorch's attention."""

    rows: slice
    keys: slice
    """The keys that any of the rows sees, and those between them."""
    is_causal: bool = False
    """Whether row i of the part sees the keys up to i of the part, aligned to the top left."""
    seen: Tensor | None = None
    """The keys that a row sees: (rows, keys), bool; None for all, or where `is_causal` says it."""


def write(inputs: AttentionInputs, out: Tensor) -> None:
    """Writes PyTorch's output into `out`, of the shape `inputs.out_shape`; packed sequences one by
    one.

    The inputs must have neither a soft-cap nor descales.
    """
    if inputs.cu_seqlens is None:
        out.copy_(dense(inputs))
        return
    for rows, _, one in inputs.sequences():
        batch_of_one(out[rows]).copy_(dense(one))


def dense(inputs: AttentionInputs) -> Tensor:
    """Returns the output of dense inputs, (batch, heads, seqlen_q, head_dim_v), in q's dtype.

    The inputs must have neither a soft-cap nor descales. Rows that see no key are undefined.
    """
    outs = [
        scaled_dot_product_attention(
            *(inputs.q[:, :, part.rows], inputs.k[:, :, part.keys], inputs.v[:, :, part.keys]),
            attn_mask=part.seen,
            is_causal=part.is_causal,
            scale=inputs.scale,
            enable_gqa=inputs.group > 1,
        )
        for part in parts(inputs)
    ]
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)


def parts(inputs: AttentionInputs, most_rows: int = 0) -> Iterator[Part]:
    """Yields the parts of dense inputs: one if PyTorch needs no mask, else blocks of `most_rows`
    rows; 0 stands for 1,024.

    PyTorch's own causal mask is aligned to the top left, so only square ones are given by its flag.
    Few of its backends take a mask with grouped heads, and the one that does writes out all scores.
    So inputs that need a mask are computed in blocks of rows, each with the keys that they see.
    """
    seqlen_q, seqlen_k = inputs.q.shape[2], inputs.k.shape[2]
    diagonal = seqlen_k - seqlen_q
    left, right = inputs.band
    if left is not None and left >= seqlen_k - 1:  # the last row sees key 0
        left = None
    if right is not None and diagonal + right >= seqlen_k - 1:  # row 0 sees the last key
        right = None
    # On the CPU PyTorch multiplies scores by the scale after it has made the hidden ones -inf.
    square = right == 0 == diagonal and inputs.scale >= torch.finfo(torch.float32).tiny
    if left is None and (right is None or square):
        yield Part(slice(0, seqlen_q), slice(0, seqlen_k), right is not None)
        return
    step, most_keys = most_rows or _MASKED_ROWS, seqlen_k
    if left is not None and right is not None:
        most_keys = min(seqlen_k, step + left + right)
    step = max(1, min(step, _MASK_ELEMENTS // max(1, most_keys)))
    for start in range(0, seqlen_q, step):
        rows = slice(start, min(start + step, seqlen_q))
        own = start + diagonal  # the key on the diagonal of the first row
        first = 0 if left is None else max(0, own - left)
        end = seqlen_k
        if right is not None:
            end = min(end, max(first + 1, own + right + rows.stop - start))
        seen = torch.ones(rows.stop - start, end - first, dtype=torch.bool, device=inputs.q.device)
        if right is not None:
            seen = seen.tril(own + right - first)
        if left is not None:
            seen = seen.triu(own - left - first)
        yield Part(rows, slice(first, end), False, seen)
