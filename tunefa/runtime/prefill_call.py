"""One call of attention of packed queries over a cache with pages: its checked arguments, and the
shapes of its results."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.measure.attention_inputs import E4M3, batch_of_one
from tunefa.runtime.argument_checks import DTYPES, check_scale, check_starts, check_tensor
from tunefa.runtime.cache_checks import (
    check_descales,
    check_dtypes,
    check_sizes,
    check_table,
    check_vector,
)
from tunefa.runtime.call import Options
from tunefa.runtime.decode_call import check_like_result
from tunefa.spec.rounding import coarse_ceil, next_pow2
from tunefa.spec.workload import Workload

NAMES = "k", "v"
"""The arguments of `flash_attention_varlen` that are the cache."""


class PrefillTensors(NamedTuple):
    """The arguments of a call that are tensors, in the caller's layout."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor
    seqlens_k: Tensor
    block_table: Tensor
    sinks: Tensor | None = None
    k_descale: Tensor | None = None
    """The factors of a cache in e4m3, (batch, heads_kv) in fp32."""
    v_descale: Tensor | None = None

    @property
    def of_launch(self) -> tuple[Tensor, ...]:
        """The tensors that kernels take behind q, the cache, out and lse."""
        given = (self.seqlens_k, self.block_table, self.cu_seqlens_q, *self[6:])
        return tuple(each for each in given if each is not None)


@dataclass(frozen=True)
class PrefillCall:
    """The checked arguments of a call.

    q is (rows, heads, head_dim). The cache is seen with heads first: k is (pages, heads_kv,
    page_size, head_dim), and v (pages, heads_kv, page_size, head_dim_v).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    tensors: PrefillTensors
    """All tensors, as the caller has given them."""
    scale: float
    options: Options

    @classmethod
    def of(cls, tensors: PrefillTensors, options: Options, scale: float | None) -> PrefillCall:
        """Makes the call. Raises TunefaError for the first argument that does not fit."""
        options.check()
        check_tensor("q", tensors.q, 3, "packed queries are (rows, heads, head_dim)")
        axes = "with block_table a cache is (pages, page_size, heads_kv, head_dim)"
        for name, tensor in (("k", tensors.k), ("v", tensors.v)):
            check_tensor(name, tensor, 4, axes)
        if tensors.q.dtype == E4M3:
            raise TunefaError(f"q is {E4M3}: over a cache with pages it is bf16 or fp16")
        check_dtypes(tensors[:3], NAMES)
        q, k, v = tensors.q, tensors.k.transpose(1, 2), tensors.v.transpose(1, 2)
        check_sizes(batch_of_one(q), k, v, tensors.block_table, NAMES)
        check_starts("cu_seqlens_q", tensors.cu_seqlens_q, q)
        batch = tensors.cu_seqlens_q.shape[0] - 1
        check_vector("seqlens_k", tensors.seqlens_k, (batch,), torch.int32, q)
        check_table(tensors.block_table, q, batch)
        if tensors.sinks is not None:
            check_vector("sinks", tensors.sinks, (q.shape[1],), torch.float32, q)
        check_descales(tensors[-2:], (batch, k.shape[1]), k)
        return cls(q, k, v, tensors, check_scale(scale, q.shape[-1]), options)

    @property
    def softcap(self) -> float | None:
        """The bound of the scores, None for none."""
        return self.options.softcap

    @property
    def most_keys(self) -> int:
        """The keys that the pages of one sequence have places for."""
        return self.tensors.block_table.shape[1] * self.k.shape[2]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute: no row, or no place for a key."""
        sizes = (*self.q.shape, *self.v.shape, *self.tensors.block_table.shape)
        return 0 in sizes

    def new_out(self) -> Tensor:
        """Returns an uninitialised `out`, (rows, heads, head_dim_v)."""
        return self.q.new_empty((*self.q.shape[:2], self.v.shape[3]))

    def new_lse(self) -> Tensor:
        """Returns an uninitialised lse, (heads, rows)."""
        dtype = torch.float64 if self.q.dtype == torch.float64 else torch.float32
        return self.q.new_empty((self.q.shape[1], self.q.shape[0]), dtype=dtype)

    def workload(self) -> Workload:
        """The workload of the call, with batch and lengths rounded up to powers of two, so that
        calls with similar lengths share a config. Raises TunefaError where no kernel could serve
        it."""
        options, tensors = self.options, self.tensors
        seqlen_q, seqlen_k = longest(tensors, options)
        return Workload(
            op="prefill",
            batch=next_pow2(tensors.seqlens_k.shape[0]),
            heads=self.q.shape[1],
            heads_kv=self.k.shape[1],
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            head_dim=self.q.shape[2],
            head_dim_v=self.v.shape[3],
            dtype=DTYPES[self.q.dtype],
            causal=options.causal,
            window_left=options.window_left,
            window_right=options.window_right,
            softcap=self.softcap is not None,
            sinks=tensors.sinks is not None,
            e4m3cache=tensors.k_descale is not None,
            page_size=self.k.shape[2],
            varlen=True,
        )


def longest(tensors: PrefillTensors, options: Options) -> tuple[int, int]:
    """Returns (queries, keys) of the longest sequence, rounded up to powers of two. Keys are those
    that the pages of a sequence have places for, or max_seqlen_k where that is less and not 0."""
    keys = tensors.block_table.shape[1] * tensors.k.shape[1]
    keys = min(keys, options.max_seqlen_k or keys)
    return next_pow2(max(1, options.max_seqlen_q)), next_pow2(max(1, keys))


def check_out(call: PrefillCall, out: Tensor | None) -> None:
    """Raises TunefaError unless `out` has the result's shape, dtype and device, or is None."""
    if out is not None:
        check_like_result(out, call.new_out())


def key(tensors: PrefillTensors, options: Options, out: Tensor | None) -> Hashable:
    """The key of a call: calls with equal keys are served by one plan. They may differ in the
    numbers of rows and of sequences, as far as `coarse_ceil` rounds these up to the same numbers,
    and in lengths."""
    q, k, v, starts, lengths, table, sinks, *descales = tensors
    given = (q, k, v) if out is None else (q, k, v, out)
    rows = None if out is None else out.shape[0] == q.shape[0]
    return (
        *((x.shape[1:], x.stride(), x.dtype, x.get_device()) for x in given),
        (k.shape[0], v.shape[0], rows),
        tuple([x.data_ptr() % 16 == 0 for x in given]),  # what is not may be copied before
        *((x.dim(), x.stride(), x.dtype, x.get_device()) for x in (starts, lengths, table)),
        coarse_ceil(q.shape[0]),
        coarse_ceil(starts.shape[0] - 1),
        lengths.shape[0] == table.shape[0] == starts.shape[0] - 1,
        (q.shape[0] == 0, starts.shape[0] < 2, table.shape[1] == 0),
        None if sinks is None else (sinks.shape, *_described(sinks)),
        *(x if x is None else (x.shape[0] == lengths.shape[0], *_described(x)) for x in descales),
        options._replace(max_seqlen_q=0, max_seqlen_k=0),
        longest(tensors, options),
    )


def _described(tensor: Tensor) -> tuple[Any, ...]:
    """The properties of sinks and descales, without the first axis's length, that decide a plan."""
    return tensor.dim(), tensor.shape[1:], tensor.stride(), tensor.dtype, tensor.get_device()
