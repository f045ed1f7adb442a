"""The libraries that `benchmarks.decode` races: each makes a call on the caches of a point."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.graphs import Call
from tunefa.spec.workload import Workload

MOST_COPIED_BYTES = 5e10
"""Caches with more bytes are not copied to another layout: both must fit on the device."""


def cudnn(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """PyTorch's cuDNN attention; all sequences have all keys."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call(number: int) -> None:
        q, k, v = made[number][:3]
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=workload.group > 1)

    return call


def fa2(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """FlashAttention-2 of PyTorch, which splits keys by a rule of its own."""
    forward = torch.ops.aten._flash_attention_forward.default

    def call(number: int) -> None:
        q, k, v = (x.transpose(1, 2) for x in made[number][:3])
        forward(q, k, v, None, None, q.shape[1], k.shape[1], 0.0, False, False)

    return call


def fa3(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """FlashAttention-3 (fa3-fwd), which splits keys by a rule of its own."""
    library = importlib.import_module("fa3_fwd_interface")

    def call(number: int) -> None:
        q, k, v = (x.transpose(1, 2) for x in made[number][:3])
        library.flash_attn_func(q, k, v, causal=True, num_splits=0)

    return call


def tileops(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """TileOPs, on copies in the layout that it needs: heads behind rows. It compiles a kernel for
    each batch and number of heads, and chooses among several by the number of keys. Raises
    ValueError where the copies do not fit beside the caches."""
    attention = importlib.import_module("tileops.attention")
    if workload.io_bytes * len(made) > MOST_COPIED_BYTES:
        raise ValueError(f"copies of {workload} exceed {MOST_COPIED_BYTES / 1e9:.0f} GB")
    run = attention.GQADenseFwdOp(sm_scale=workload.head_dim**-0.5)
    caches = [[x.transpose(1, 2).contiguous() for x in each[:3]] for each in made]

    def call(number: int) -> None:
        run(*caches[number])

    return call


def sdpa(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """PyTorch's attention, by whatever serves such head dimensions, with keys for each head."""

    def call(number: int) -> None:
        q, k, v = made[number][:3]
        k, v = (each.expand(-1, workload.heads, -1, -1) for each in (k, v))
        torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return call


def flashinfer(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """FlashInfer over pages, planned beforehand; on tensor cores where four query heads or more
    share a KV head, as its documentation advises. One plan serves all caches, so the first one's
    block table does. Raises ValueError where sequences have several queries."""
    library = importlib.import_module("flashinfer")
    w, page, (q, *_, table) = workload, workload.page_size or 1, made[0]
    if w.seqlen_q > 1:
        raise ValueError(f"{w} has {w.seqlen_q} queries of a sequence: this decodes one")
    workspace = torch.empty(256 * 2**20, dtype=torch.uint8, device=q.device)
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_tensor_cores=w.group >= 4
    )
    starts = torch.arange(w.batch + 1, dtype=torch.int32, device=q.device) * table.shape[1]
    last = torch.full_like(starts[1:], (w.seqlen_k - 1) % page + 1)
    wrapper.plan(
        *(starts, table.flatten(), last, w.heads, w.heads_kv, w.head_dim, page),
        q_data_type=q.dtype,
        kv_data_type=q.dtype,
    )
    caches = [[x.transpose(1, 2) for x in each[:3]] for each in made]

    def call(number: int) -> None:
        q, k, v = caches[number]
        wrapper.run(q[:, 0], (k, v))

    return call


def flashinfer_latent(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """FlashInfer's latent attention over pages, planned beforehand; latents and rotated parts are
    caches of their own there."""
    library = importlib.import_module("flashinfer")
    w, page, wrappers, caches = workload, workload.page_size or 1, [], []
    for q, k, _, _, _, seqlens, table in made:
        workspace = torch.empty(128 * 2**20, dtype=torch.uint8, device=q.device)
        wrapper = library.mla.BatchMLAPagedAttentionWrapper(workspace, backend="auto")
        starts = torch.arange(w.batch + 1, dtype=torch.int32, device=q.device)
        wrapper.plan(
            starts * w.seqlen_q, starts * table.shape[1], table.flatten(), seqlens, w.heads,
            w.head_dim_v, w.head_dim - w.head_dim_v, page, w.causal, w.head_dim**-0.5, q.dtype,
            k.dtype,
        )  # fmt: skip
        wrappers.append(wrapper)
        rows = q.transpose(1, 2).flatten(0, 1)
        parts = (each[..., : w.head_dim_v].contiguous() for each in (rows, k[:, 0]))
        rest = (each[..., w.head_dim_v :].contiguous() for each in (rows, k[:, 0]))
        caches.append([*parts, *rest])

    def call(number: int) -> None:
        q_latent, latent, q_rope, rope = caches[number]
        wrappers[number].run(q_latent, q_rope, latent, rope)

    return call


PEERS = {"cudnn": cudnn, "fa2": fa2, "fa3": fa3, "tileops": tileops}
ALL_PEERS = {*PEERS, "sdpa", "flashinfer"}


def peers_of(workload: Workload) -> dict[str, Callable[..., Call]]:
    """The peers that may serve a workload; one that is not installed fails when it is made."""
    if workload.mla:
        return {"flashinfer": flashinfer_latent} if workload.page_size else {"sdpa": sdpa}
    if workload.e4m3cache:
        return {}
    return {"flashinfer": flashinfer} if workload.page_size else dict(PEERS)
