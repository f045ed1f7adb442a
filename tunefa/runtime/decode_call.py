"""One call of attention over a cache: its checked arguments, and the shapes of its results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tunefa.errors import TunefaError, unknown
from tunefa.measure.attention_inputs import E4M3, shares_rows
from tunefa.runtime import shared_prefix as prefixes
from tunefa.runtime.argument_checks import (
    DTYPES,
    check_flag,
    check_scale,
    check_softcap,
    check_tensor,
)
from tunefa.runtime.cache_checks import (
    check_descales,
    check_device,
    check_dtypes,
    check_sizes,
    check_table,
    check_vector,
)
from tunefa.runtime.call import LAYOUTS, Options, Window, heads_first
from tunefa.spec.workload import Workload
from tunefa.spec.workload_parts import MAX_HEAD_DIM

NAMES = "k_cache", "v_cache"
"""The arguments of `decode_attention` that are the cache."""
CacheKey = tuple[Any, ...]
ALL_ALIGNED = True, True, True, True
"""Whether q, k, v and out are aligned; a call without `out` counts as one whose `out` is."""


class CacheTensors(NamedTuple):
    """The arguments of a call that are tensors, in the caller's layout."""

    q: Tensor
    k: Tensor
    v: Tensor
    seqlens: Tensor
    block_table: Tensor | None = None
    sinks: Tensor | None = None
    k_descale: Tensor | None = None
    """The factors of a cache in e4m3, (batch, heads_kv) in fp32."""
    v_descale: Tensor | None = None


class CacheOptions(NamedTuple):
    """The arguments that decide, with the tensors' shapes, what runs a call."""

    causal: bool = True
    window_left: int | None = None
    softcap: float | None = None
    layout: str = "bshd"
    shared_prefix: bool = False
    batch_invariant: bool = True

    @classmethod
    def of(
        cls,
        causal: bool,
        window: Window,
        softcap: float | None,
        layout: str,
        more: tuple[bool, bool] = (False, True),
    ) -> CacheOptions:
        """Makes options from a window as the public functions take it. `more` are shared_prefix and
        batch_invariant. Raises TunefaError for a window that does not fit: queries are the last
        ones of their sequence, so none sees a key beyond its diagonal but in a call without a
        causal mask and without a window."""
        if window is None:
            # The class itself would take twice the time.
            return tuple.__new__(cls, (causal, None, softcap, layout, *more))
        options = Options.of(causal, window, layout, softcap)
        if options.window_right is not None or (
            options.window_left is not None and not options.causal
        ):
            raise TunefaError(
                f"window is {window!r} and causal is {causal}: over a cache a window goes with a "
                f"causal mask, so give causal=True"
            )
        return cls(options.causal, options.window_left, softcap, layout, *more)


@dataclass(frozen=True)
class CacheCall:
    """The checked arguments of a call, with views of its tensors whose heads come first.

    q is (batch, heads, seqlen_q, head_dim). The cache is (batch, heads_kv, keys, head_dim) and
    (..., head_dim_v), or with a block table (pages, heads_kv, page_size, ...).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    seqlens: Tensor
    block_table: Tensor | None
    sinks: Tensor | None
    k_descale: Tensor | None
    v_descale: Tensor | None
    scale: float
    options: CacheOptions

    @classmethod
    def of(cls, tensors: CacheTensors, options: CacheOptions, scale: float | None) -> CacheCall:
        """Makes the call. Raises TunefaError for the first argument that does not fit."""
        layout = options.layout
        if layout not in LAYOUTS:
            raise unknown("layout", str(layout), LAYOUTS)
        check_flag("causal", options.causal)
        check_softcap(options.softcap)
        cache_axes = LAYOUTS[layout]
        if tensors.block_table is not None:
            cache_axes = cache_axes.replace("batch", "pages").replace("seqlen", "page_size")
        for name, tensor in (("q", tensors.q), ("k_cache", tensors.k), ("v_cache", tensors.v)):
            axes = LAYOUTS[layout] if name == "q" else cache_axes
            check_tensor(name, tensor, 4, f"{axes} for layout {layout!r}")
        if tensors.q.dtype == E4M3:
            raise TunefaError(f"q is {E4M3}: attention over a cache takes bf16 and fp16")
        check_dtypes(tensors[:3], NAMES)
        views = [heads_first(tensor, layout) for tensor in tensors[:3]]
        q, k, v = views
        check_sizes(q, k, v, tensors.block_table, NAMES)
        batch, heads = q.shape[:2]
        check_vector("seqlens", tensors.seqlens, (batch,), torch.int32, q)
        if tensors.sinks is not None:
            check_vector("sinks", tensors.sinks, (heads,), torch.float32, q)
        if tensors.block_table is not None:
            check_table(tensors.block_table, q, batch)
        check_descales(tensors[-2:], (batch, k.shape[1]), k)
        prefixes.check(
            options.shared_prefix, tensors.block_table, options.window_left, tensors.k_descale,
            q.shape[-1],
        )  # fmt: skip
        check_flag("batch_invariant", options.batch_invariant)
        scale = check_scale(scale, q.shape[-1])
        return cls(q, k, v, *tensors[3:], scale, options)

    @property
    def softcap(self) -> float | None:
        """The bound of the scores, None for none."""
        return self.options.softcap

    @property
    def page_size(self) -> int | None:
        """Keys of a page; None where the cache has no pages."""
        return None if self.block_table is None else self.k.shape[2]

    @property
    def more(self) -> tuple[Tensor, ...]:
        """The tensors that kernels take behind q, the cache, out and lse."""
        given = self.seqlens, self.block_table, self.sinks, self.k_descale, self.v_descale
        return tuple(each for each in given if each is not None)

    @property
    def most_keys(self) -> int:
        """The keys that the cache of one sequence has room for."""
        if self.block_table is None:
            return self.k.shape[2]
        return self.block_table.shape[1] * self.k.shape[2]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute: no row, or no room for a key."""
        return 0 in self.q.shape or 0 in self.v.shape or self.most_keys == 0

    def new_out(self) -> Tensor:
        """Returns an uninitialised `out`, contiguous in the call's layout."""
        shape = (*self.q.shape[:3], self.v.shape[3])
        if self.options.layout == "bshd":
            shape = shape[0], shape[2], shape[1], shape[3]
        return self.q.new_empty(shape)

    def new_lse(self) -> Tensor:
        """Returns an uninitialised lse, (batch, heads, seqlen_q)."""
        dtype = torch.float64 if self.q.dtype == torch.float64 else torch.float32
        return self.q.new_empty(self.q.shape[:3], dtype=dtype)

    def workload(self) -> Workload:
        """The workload of the call. Raises TunefaError where no kernel could serve it."""
        return Workload(
            op="decode",
            batch=self.q.shape[0],
            heads=self.q.shape[1],
            heads_kv=self.k.shape[1],
            seqlen_q=self.q.shape[2],
            seqlen_k=self.most_keys,
            head_dim=self.q.shape[3],
            head_dim_v=self.v.shape[3],
            dtype=DTYPES[self.q.dtype],
            causal=self.options.causal,
            window_left=self.options.window_left,
            softcap=self.softcap is not None,
            sinks=self.sinks is not None,
            e4m3cache=self.k_descale is not None,
            prefix=self.options.shared_prefix,
            batchvariant=not self.options.batch_invariant,
            page_size=self.page_size,
            mla=self.k.shape[3] > MAX_HEAD_DIM and shares_rows(self.k, self.v),
        )


def check_out(call: CacheCall, out: Tensor | None) -> None:
    """Raises TunefaError unless `out` has the result's shape, dtype and device, or is None."""
    if out is not None:
        check_like_result(out, call.new_out())


def check_like_result(out: Tensor, wanted: Tensor) -> None:
    """Raises TunefaError unless `out` has the shape, dtype and device of `wanted`."""
    if not isinstance(out, Tensor):
        raise TunefaError(f"out is a {type(out).__name__}: give a torch.Tensor, or None")
    if (out.shape, out.dtype) != (wanted.shape, wanted.dtype):
        raise TunefaError(
            f"out is {tuple(out.shape)}, {out.dtype}: give {tuple(wanted.shape)} in {wanted.dtype}"
        )
    check_device("out", out, wanted)


def key(tensors: CacheTensors, options: CacheOptions, out: Tensor | None) -> CacheKey:
    """The key of a call: calls with equal keys are served by one plan. It has no length."""
    q, k, v, seqlens, table, sinks, k_descale, v_descale = tensors
    of_q, of_k, of_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
    of_out = 0 if out is None else out.data_ptr()
    aligned = ALL_ALIGNED
    if (of_q | of_k | of_v | of_out) % 16:
        # One by one: what is not aligned may be copied before a kernel reads it.
        aligned = of_q % 16 == 0, of_k % 16 == 0, of_v % 16 == 0, of_out % 16 == 0
    others = None
    if sinks is not None or k_descale is not None or v_descale is not None:
        others = described(sinks), described(k_descale), described(v_descale)
    return (
        q.shape, q.stride(), q.dtype, q.get_device(),
        k.shape, k.stride(), k.dtype, k.get_device(),
        v.shape, v.stride(), v.dtype, v.get_device(),
        aligned, of_k == of_v and shares_rows(k, v), options,
        seqlens.shape, seqlens.stride(), seqlens.dtype, seqlens.get_device(),
        None if table is None else described(table),
        None if out is None else described(out),
        others,
    )  # fmt: skip


def described(tensor: Tensor | None) -> tuple[Any, ...] | None:
    """The properties of a tensor that a plan depends on."""
    if tensor is None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device()
