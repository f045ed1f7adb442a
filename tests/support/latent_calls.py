"""Tensors of multi-head latent attention over a cache, as launches take them, and their results."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tunefa.measure import ops
from tunefa.spec.rounding import ceil_div
from tunefa.spec.workload import Workload


def made(workload: Workload, lengths: list[int], seed: int = 0) -> tuple[Any, ...]:
    """Returns (q, k, v, out, lse, seqlens, ...) on the CPU, with so many keys of each sequence. NaN
    lies in every slot that no sequence has, and table entries that none needs name a page of NaN.
    """
    tensors: tuple[Any, ...] = ops.of(workload).tensors(workload, "cpu", seed)
    cache, page = tensors[1], workload.page_size
    tensors[5].copy_(torch.tensor(lengths, dtype=torch.int32))
    used = torch.zeros(cache.shape[0], cache.shape[2], dtype=torch.bool)
    for sequence, keys in enumerate(lengths):
        if page is None:
            used[sequence, :keys] = True
            continue
        table = tensors[6][sequence]
        for key in range(keys):
            used[table[key // page], key % page] = True
    if page is not None:
        spare = int((~used.any(1)).nonzero()[0])
        for sequence, keys in enumerate(lengths):
            tensors[6][sequence, ceil_div(keys, page) :] = spare
    cache.transpose(1, 2)[~used] = math.nan
    return tensors


def of_sequence(tensors: tuple[Any, ...], workload: Workload, number: int) -> tuple[Any, ...]:
    """Returns the call of one sequence, with outputs of its own; pages stay where they are."""
    q, k, v, out, lse, seqlens, *table = (
        each if workload.page_size is not None and i in (1, 2) else each[number : number + 1]
        for i, each in enumerate(tensors)
    )
    empty = [torch.full_like(each, math.nan) for each in (out, lse)]
    return q, k, v, *empty, seqlens.clone(), *table


def right(
    workload: Workload, tensors: tuple[Any, ...], lengths: list[int], scale: float
) -> tuple[Tensor, Tensor]:
    """Returns (out, lse) in fp64, from the definition."""
    q, cache = tensors[0].double(), tensors[1].double()
    out = torch.zeros(tensors[3].shape, dtype=torch.float64)
    lse = torch.full(tensors[4].shape, -math.inf, dtype=torch.float64)
    for sequence, keys in enumerate(lengths):
        places = torch.arange(keys)
        rows = torch.full_like(places, sequence)
        if workload.page_size is not None:
            rows = tensors[6][sequence].long()[places // workload.page_size]
            places = places % workload.page_size
        kv = cache[rows, :, places].transpose(0, 1).repeat_interleave(workload.group, 0)
        scores = scale * q[sequence] @ kv.transpose(1, 2)
        last = keys - workload.seqlen_q + torch.arange(workload.seqlen_q)
        if workload.causal:
            scores.masked_fill_(torch.arange(keys) > last[:, None], -math.inf)
        lse[sequence] = torch.logsumexp(scores, -1)
        p = torch.exp(scores - lse[sequence].masked_fill(lse[sequence].isinf(), 0.0)[..., None])
        out[sequence] = p @ kv[..., : workload.head_dim_v]
    return out, lse


def worst_row(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> float:
    """Returns the largest ||out - right|| / ||right|| of a row, or error of an lse; infinite where
    a row without keys is not 0, or NaN is found."""
    (out, lse), (right_out, right_lse) = found, wanted
    off = (out.double() - right_out).norm(dim=-1) / right_out.norm(dim=-1).clamp_min(1e-30)
    empty = right_lse.isinf()
    if not torch.equal(lse.double()[empty], right_lse[empty]):
        return math.inf
    worst = [
        off.max(),
        (lse.double() - right_lse)[~empty].abs().max() if (~empty).any() else off.max(),
    ]
    return float(torch.stack(worst).nan_to_num(math.inf).max())
