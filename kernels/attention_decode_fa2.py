"""Attention of few queries over a cache by the FlashAttention-2 inside PyTorch.

Algorithm: FlashAttention-2 (arXiv:2307.08691) with split keys, in CUDA C++ for sm80, which newer
chips run too. The query heads of a group are rows of one tile where a sequence has one query. The
keys are then split among CTAs by a rule that knows the batch, and partial results are combined by a
second kernel; with several queries, or with a KV head for each query head, they are not split
unless the cache has pages. tunefa calls PyTorch's operator aten::_flash_attention_forward, with the
lengths of sequences on the device, and has no part in the kernel. So there are no parameters, and
there is nothing to tune.

The bits of a sequence depend on the batch, so it serves only calls without batch invariance. There
it competes like any other kernel: it is checked, timed and raced, and a record may say that it is
the fastest for a workload. Its record holds PyTorch's version, and does not serve with another one.
Without a record, tunefa's own kernels come first.

Pages have multiples of 256 keys there. Older versions of the operator take no block table (2.12
does), and refuse pages.
"""

from __future__ import annotations

import functools

from tunefa.kernels.decode.tensors import most_keys
from tunefa.kernels.library.caches import rows_apart, rows_fit, seen_keys, without_keys
from tunefa.kernels.library.flash_attention_2 import LIBRARY, version
from tunefa.kernels.library.tensors import readable, sequences_first

__all__ = ["LIBRARY", "is_aligned", "run", "version"]

is_aligned = rows_fit


def run(tensors, spec):
    """Returns (out, lse). The operator takes packed queries and keys; the keys of each sequence
    begin where its part of the cache does."""
    import torch

    workload, (q, k, v) = spec.workload, map(sequences_first, tensors[:3])
    batch, rows, heads, _ = q.shape
    apart = keys = most_keys(tensors, workload)
    more = {"block_table": tensors[6]} if workload.page_size else {}
    if not more:
        apart, k, v = rows_apart(tensors[1]), _packed(tensors[1]), _packed(tensors[2])
    no_dropout, no_debug_mask = 0.0, False
    out, lse, *_ = torch.ops.aten._flash_attention_forward.default(
        *(readable(q).reshape(batch * rows, heads, -1), k, v),
        *(_starts(q.device, batch, rows), _starts(q.device, batch, apart), rows, keys),
        *(no_dropout, workload.causal, no_debug_mask),
        scale=spec.scale,
        window_size_left=workload.window_left,
        window_size_right=0 if workload.causal else None,
        seqused_k=seen_keys(tensors, workload),
        **more,
    )
    lse = without_keys(lse).view(heads, batch, rows)
    return sequences_first(out.view(batch, rows, heads, -1)), lse.transpose(0, 1)


def _packed(cache):
    """Returns the rows of a contiguous cache, those between sequences included."""
    batch, heads, keys, columns = cache.shape
    rows = (batch - 1) * rows_apart(cache) + keys
    return cache.as_strided((rows, heads, columns), (cache.stride(2), cache.stride(1), 1))


def _starts(device, batch, apart):
    """Returns the first row of each of the sequences that lie so far apart, and the end of the
    last. Eager calls share them; a graph that is captured makes its own in each replay."""
    import torch

    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return _new_starts(device, batch, apart)
    return _kept_starts(device, batch, apart)


@functools.cache
def _kept_starts(device, batch, apart):
    """The starts of all eager calls, on any stream: the host waits once, until they are there."""
    import torch

    made = _new_starts(device, batch, apart)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return made


def _new_starts(device, batch, apart):
    import torch

    return torch.arange(batch + 1, device=device, dtype=torch.int32) * apart
