"""`decode_attention`, attention of few queries over a cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor
from torch._C import (
    _are_functorch_transforms_active,
    _is_any_autocast_enabled,
    _is_tracing,
    _len_torch_dispatch_stack,
)
from torch.compiler import is_compiling

from tunefa.errors import TunefaError
from tunefa.measure.attention_inputs import as_indexed
from tunefa.runtime import autocast, process
from tunefa.runtime.api import Layout, unknown_argument
from tunefa.runtime.argument_checks import check_tensor
from tunefa.runtime.cache_checks import check_device, check_no_gradients, check_pages, check_room
from tunefa.runtime.call import LAYOUTS, Tensors, Window, heads_first
from tunefa.runtime.decode_call import (
    CacheCall,
    CacheOptions,
    CacheTensors,
    check_like_result,
    check_out,
)
from tunefa.runtime.plain_autograd import are_plain


@overload
def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seqlens: Tensor,
    block_table: Tensor | None = ...,
    *,
    return_lse: Literal[False] = ...,
    k: Tensor | None = ...,
    v: Tensor | None = ...,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    sinks: Tensor | None = ...,
    k_descale: Tensor | None = ...,
    v_descale: Tensor | None = ...,
    layout: Layout = ...,
    shared_prefix: bool = ...,
    batch_invariant: bool = ...,
    out: Tensor | None = ...,
) -> Tensor: ...


@overload
def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seqlens: Tensor,
    block_table: Tensor | None = ...,
    *,
    return_lse: Literal[True],
    k: Tensor | None = ...,
    v: Tensor | None = ...,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    sinks: Tensor | None = ...,
    k_descale: Tensor | None = ...,
    v_descale: Tensor | None = ...,
    layout: Layout = ...,
    shared_prefix: bool = ...,
    batch_invariant: bool = ...,
    out: Tensor | None = ...,
) -> tuple[Tensor, Tensor]: ...


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seqlens: Tensor,
    block_table: Tensor | None = None,
    *,
    k: Tensor | None = None,
    v: Tensor | None = None,
    causal: bool = True,
    window: Window = None,
    softcap: float | None = None,
    scale: float | None = None,
    sinks: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    layout: Layout = "bshd",
    shared_prefix: bool = False,
    batch_invariant: bool = True,
    out: Tensor | None = None,
    return_lse: bool = False,
    **unknown: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns the attention of the last queries of each sequence over its cached keys and values.

    q is (batch, seqlen_q, heads, head_dim). The cache is k_cache (batch, keys, heads_kv, head_dim)
    and v_cache (batch, keys, heads_kv, head_dim_v). seqlens, (batch,) in int32, says how many keys
    of it each sequence has, at most all; what lies behind them is not used, and may be NaN. With
    layout "bhsd", heads come before seqlen_q and keys. The result has q's shape with head_dim_v.

    block_table: the cache has pages, k_cache (pages, page_size, heads_kv, head_dim), and
    block_table, (batch, pages of the longest sequence) in int32, has the numbers of the pages of
    each sequence. Entries behind its last page are not read.

    v_cache may be a view of k_cache, k_cache[..., :head_dim_v]: multi-head latent attention in its
    absorbed form (DeepSeek-V2, arXiv:2405.04434, section 2.1.2), with a head_dim of up to 576 and a
    head_dim_v of up to 512. Kernels then read each row of the cache once.

    k, v: new keys and values, (batch, new, heads_kv, head_dim | head_dim_v), which are written into
    the cache behind the `seqlens` keys of each sequence first. The queries see them. The cache must
    have room for them, also for rows of a batch that have no sequence: with pages, such a row needs
    a page that nobody else has. seqlens itself does not change.

    causal: query i of m sees the keys j <= i + n - m of its n, new ones included. window, softcap
    and scale are those of `tunefa.flash_attention`; a window needs a causal mask.

    sinks: (heads,) in fp32, a logit of each head beside its scores that has no value (attention
    sinks, arXiv:2309.17453). lse includes it.

    k_descale, v_descale: the factors of a cache in torch.float8_e4m3fn, under queries in bf16 or
    fp16: (batch, heads_kv) in fp32, or a shape that broadcasts to it. New keys and values in q's
    dtype are divided by them and rounded.

    shared_prefix: the first pages that the block table has in common for all sequences are read for
    many queries at once, and not once for each sequence. Their number is found on the device. The
    last bits of a result then depend on the whole batch. It goes with a block table, without a
    window and without factors.

    batch_invariant: with False the bits of a sequence may depend on the others. The config is that
    for the batch and the cache's size, or an installed library, if a record says it is the fastest.

    out: where the result is written. return_lse: also return lse, the logsumexp of the scores of
    each row, (batch, heads, seqlen_q) in fp32.

    A sequence without keys gives 0, and an lse of -inf. A sequence gets the same bits whatever else
    is in the batch, unless shared_prefix or batch_invariant says otherwise. Lengths and pages are
    read on the device: the call does not wait for it, and a CUDA graph of the call may be replayed
    with others. On the CPU, and where no kernel serves the call, PyTorch computes it and waits.

    It has no gradients. Raises TunefaError for arguments that do not fit.
    """
    if unknown:
        raise unknown_argument(decode_attention, unknown)
    if k_descale is not None or v_descale is not None:
        k_descale, v_descale = _broadcast((k_descale, v_descale), q, k_cache, layout)
    given = q, k_cache, v_cache, seqlens, block_table, sinks, k_descale, v_descale
    tensors = tuple.__new__(CacheTensors, given)  # the class itself would take twice the time
    options = CacheOptions.of(causal, window, softcap, layout, (shared_prefix, batch_invariant))
    are_simple = check_no_gradients("decode_attention has", (*tensors, k, v))
    if _is_any_autocast_enabled():
        tensors = tensors._replace(q=autocast.cast(Tensors(*tensors[:3])).q)
    if k is not None or v is not None:
        tensors = tensors._replace(seqlens=_append((tensors, options, scale), out, k, v))
    if is_compiling() or _is_watched() or not (are_simple or are_plain(tensors)):
        both = _through_op(tensors, options, scale, out)
        return both if return_lse else both[0]
    found, lse = process.current().decode(tensors, options, scale, out, return_lse)
    return (found, lse) if return_lse and lse is not None else found


def _broadcast(
    factors: tuple[Tensor | None, Tensor | None], q: Tensor, cache: Tensor, layout: str
) -> list[Tensor | None]:
    """Returns factors as (batch, heads_kv), where they broadcast to it; others as they are."""
    if not isinstance(q, Tensor) or not isinstance(cache, Tensor):
        return list(factors)
    return broadcast(factors, q.shape[:1] + cache.shape[1 if layout == "bhsd" else 2 :][:1])


def broadcast(
    factors: Sequence[Tensor | None], shape: Sequence[int | torch.SymInt]
) -> list[Tensor | None]:
    """Returns factors with that shape, where they broadcast to it; others as they are."""
    found: list[Tensor | None] = []
    for each in factors:
        fits = isinstance(each, Tensor) and each.dim() <= 2 and all(
            size in (1, wanted) for size, wanted in zip(each.shape[::-1], shape[::-1], strict=False)
        )  # fmt: skip
        found.append(each.expand(tuple(shape)) if fits and each is not None else each)
    return found


def is_plain(tensors: Sequence[object]) -> bool:
    """Whether the call can go around PyTorch's dispatcher, as `tunefa.runtime.api` has it."""
    return not _is_watched() and are_plain(tensors)


def _is_watched() -> bool:
    stack = _len_torch_dispatch_stack()
    return bool(stack) or _are_functorch_transforms_active() or _is_tracing()


def _through_op(
    tensors: CacheTensors, options: CacheOptions, scale: float | None, out: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Calls the op, for torch.compile, fake tensors and dispatch modes."""
    if not is_compiling():
        if _are_functorch_transforms_active():
            raise TunefaError("decode_attention has no rule for torch.func's transforms, as vmap")
        CacheCall.of(tensors, options, scale)  # raises for wrong arguments before PyTorch does
    found, lse = torch.ops.tunefa.decode_attention.default(*tensors, *options, scale)
    if out is not None:
        check_like_result(out, found)
        found = out.copy_(found)
    return found, lse


def _append(
    given: tuple[CacheTensors, CacheOptions, float | None],
    out: Tensor | None, k: Tensor | None, v: Tensor | None,
) -> Tensor:  # fmt: skip
    """Writes new keys and values into the cache, if all arguments fit; returns the new lengths."""
    check_out(call := CacheCall.of(*given), out)
    if k is None or v is None:
        raise TunefaError(f"{'k' if k is None else 'v'} is missing: give both k and v, or neither")
    layout = call.options.layout
    for name, tensor in (("k", k), ("v", v)):
        check_tensor(name, tensor, 4, LAYOUTS[layout])
        check_device(name, tensor, call.q)
    new_k, new_v = heads_first(k, layout), heads_first(v, layout)
    for name, new, cache in (("k", new_k, call.k), ("v", new_v, call.v)):
        shape = call.q.shape[0], cache.shape[1], new_k.shape[2], cache.shape[3]
        fits = new.dtype in (cache.dtype, call.q.dtype)
        if tuple(new.shape) != shape or not fits:
            raise TunefaError(
                f"{name} is {tuple(new.shape)}, {new.dtype} with heads first: give (batch, "
                f"heads_kv, new, {'head_dim' if name == 'k' else 'head_dim_v'}), here {shape}, in "
                f"{call.q.dtype}"
            )
    count = new_k.shape[2]
    lengths = call.seqlens.clamp_min(0)
    places = lengths[:, None].long() + torch.arange(count, device=k.device)
    rows = torch.arange(places.shape[0], device=k.device)[:, None]
    page, table = call.k.shape[2], call.block_table
    check_room(places, page if table is None else page * table.shape[1])
    if table is not None:
        rows = table.gather(1, places // page).long()
        check_pages(rows, call.k.shape[0])
        places = places % page
    for cache, new, factor in (
        (call.k, new_k, call.k_descale),
        (call.v, new_v, call.v_descale),
    ):
        stored = _stored(new, cache.dtype, factor)
        as_indexed(cache).transpose(1, 2)[rows, places] = as_indexed(stored).transpose(1, 2)
    return lengths + count


def _stored(new: Tensor, dtype: torch.dtype, factor: Tensor | None) -> Tensor:
    """New keys or values as the cache stores them; those beyond e4m3 become its largest number."""
    if new.dtype == dtype or factor is None:
        return new
    largest = torch.finfo(dtype).max
    return (new.float() / factor[..., None, None]).clamp(-largest, largest).to(dtype)


_SCHEMA = (
    "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor seqlens, Tensor? block_table, "
    "Tensor? sinks, Tensor? k_descale, Tensor? v_descale, bool causal, int? window_left, "
    "float? softcap, str layout, bool shared_prefix, bool batch_invariant, float? scale)"
    " -> (Tensor, Tensor)"
)


def _run(*arguments: object) -> tuple[Tensor, Tensor]:
    *given, scale = arguments
    tensors, options = CacheTensors(*given[:8]), CacheOptions(*given[8:])  # type: ignore[arg-type]
    out, lse = process.current().decode(tensors, options, scale, None)  # type: ignore[arg-type]
    assert lse is not None
    return out, lse


def _fake(*arguments: object) -> tuple[Tensor, Tensor]:
    *given, _ = arguments
    tensors, options = CacheTensors(*given[:8]), CacheOptions(*given[8:])  # type: ignore[arg-type]
    call = CacheCall.of(tensors, options, 1.0)
    return call.new_out(), call.new_lse()


torch.library.custom_op(
    "tunefa::decode_attention", _run, mutates_args=(), schema=_SCHEMA
).register_fake(_fake)
