"""Attention of few queries over a cache by FlashAttention-3, where a package of it is installed.

Algorithm: FlashAttention-3 (arXiv:2407.08608) in CUDA C++ for Hopper, with TMA and WGMMA. The query
heads of a group are rows of one tile, the keys are split among CTAs by a rule that knows the batch,
and partial results are combined by a second kernel. tunefa calls the package's
`flash_attn_with_kvcache`, with the lengths of sequences on the device, and has no part in the
kernel. So there are no parameters, and there is nothing to tune.

The bits of a sequence depend on the batch, so it serves only calls without batch invariance. There
it competes like any other kernel: it is checked, timed and raced, and a record may say that it is
the fastest for a workload. Its record holds the package's version, and does not serve with another
one. Without a record, tunefa's own kernels come first.

The package is flash-attn-3 as its authors build it, or else fa3-fwd, which is built without fp16,
pages and windows and refuses them.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib import metadata

from tunefa.kernels.library.caches import rows_fit, seen_keys, without_keys
from tunefa.kernels.library.tensors import readable, sequences_first

LIBRARY = "FlashAttention-3"
_PACKAGES = (("flash_attn_interface", "flash-attn-3"), ("fa3_fwd_interface", "fa3-fwd"))
"""The modules with its interface, and the packages that they belong to."""


def _module():
    """Returns the first module that is there and its package; None if there is none."""
    for name, package in _PACKAGES:
        if importlib.util.find_spec(name) is not None:
            return name, package
    return None


def version():
    """Returns the package and its version; None where none is installed."""
    found = _module()
    try:
        return found and f"{found[1]} {metadata.version(found[1])}"
    except metadata.PackageNotFoundError:  # a file of that name that is no package
        return None


is_aligned = rows_fit


def run(tensors, spec):
    """Returns (out, lse)."""
    workload, (q, k, v) = spec.workload, map(sequences_first, tensors[:3])
    name, _ = _module()
    left = workload.window_left
    out, lse, *_ = importlib.import_module(name).flash_attn_with_kvcache(
        *(readable(q), k, v),
        cache_seqlens=seen_keys(tensors, workload),
        page_table=tensors[6] if workload.page_size else None,
        softmax_scale=spec.scale,
        causal=workload.causal,
        window_size=(-1, -1) if left is None else (left, 0),
        softcap=spec.softcap or 0.0,
        return_softmax_lse=True,
    )
    return sequences_first(out), without_keys(lse)
