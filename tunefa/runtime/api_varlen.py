"""`flash_attention_varlen`, attention of packed sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.runtime import prefill
from tunefa.runtime.api import attention, unknown_argument
from tunefa.runtime.call import PACKED, Options, Tensors, Window
from tunefa.runtime.prefill_call import PrefillTensors


@overload
def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = ...,
    max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    *,
    return_lse: Literal[False] = ...,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    sinks: Tensor | None = ...,
    deterministic: bool = ...,
    block_table: Tensor | None = ...,
    seqlens_k: Tensor | None = ...,
    k_descale: Tensor | None = ...,
    v_descale: Tensor | None = ...,
    out: Tensor | None = ...,
) -> Tensor: ...


@overload
def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = ...,
    max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    *,
    return_lse: Literal[True],
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    sinks: Tensor | None = ...,
    deterministic: bool = ...,
    block_table: Tensor | None = ...,
    seqlens_k: Tensor | None = ...,
    k_descale: Tensor | None = ...,
    v_descale: Tensor | None = ...,
    out: Tensor | None = ...,
) -> tuple[Tensor, Tensor]: ...


@overload
def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = ...,
    max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    *,
    return_lse: bool,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    sinks: Tensor | None = ...,
    deterministic: bool = ...,
    block_table: Tensor | None = ...,
    seqlens_k: Tensor | None = ...,
    k_descale: Tensor | None = ...,
    v_descale: Tensor | None = ...,
    out: Tensor | None = ...,
) -> Tensor | tuple[Tensor, Tensor]: ...


def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *,
    causal: bool = False,
    window: Window = None,
    softcap: float | None = None,
    scale: float | None = None,
    sinks: Tensor | None = None,
    deterministic: bool = False,
    block_table: Tensor | None = None,
    seqlens_k: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    out: Tensor | None = None,
    return_lse: bool = False,
    **unknown: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns the attention of several packed sequences, which follow one another without padding.

    q is (rows, heads, head_dim), k is (keys, heads_kv, head_dim) and v is (keys, heads_kv,
    head_dim_v), with the rows or keys of all sequences. cu_seqlens_q and cu_seqlens_k are the
    cumulative lengths: (batch + 1,), int32, on q's device. Sequence i has the rows cu_seqlens_q[i]
    to cu_seqlens_q[i + 1] of q, and the keys cu_seqlens_k[i] to cu_seqlens_k[i + 1] of k and v.
    Sequences may be empty. max_seqlen_q and max_seqlen_k are the lengths of the longest sequences,
    or more; the config is chosen by them.

    `out` is (rows, heads, head_dim_v) and lse is (heads, rows). All other arguments and the
    gradients are those of `flash_attention`, for each sequence by itself.

    Rows of q, and keys, behind the last sequence belong to none. They are not read. Their part of
    `out` and lse, and of the gradients of q, k and v, is uninitialised and may be NaN: kernels do
    not write it, because zeros would cost a pass over all rows in each call, and few calls have
    such rows. If yours do, put zeros into `out`, and into q, k and v before the call, so that their
    gradients are zeros too: `x.masked_fill(behind[:, None, None], 0.0)`, with `behind =
    torch.arange(len(x)) >= cu_seqlens[-1]` on x's device. The gradient of sinks is right without.

    block_table: keys and values are in a cache with pages, as a server has them for prompts, whole
    or in chunks: k is (pages, page_size, heads_kv, head_dim), v (pages, page_size, heads_kv,
    head_dim_v), of any strides with contiguous rows, and block_table, (batch, pages of the longest
    sequence) in int32, has the numbers of each sequence's pages. seqlens_k, (batch,) in int32, says
    how many keys each sequence has, its queries' own keys included; it stands for cu_seqlens_k, and
    max_seqlen_k may be left out. What lies behind a sequence's keys is not used, and entries of the
    table behind its last page are not read. k and v may be torch.float8_e4m3fn under q in bf16 or
    fp16, with the factors k_descale and v_descale, (batch, heads_kv) in fp32 or a shape that
    broadcasts to it. out is where the result is written. There are no gradients. On sm90 a call
    with many queries copies the keys of all pages first, see docs/serving.md: up to 1 GiB, bounded
    by max_seqlen_k.

    Kernels serve packed sequences on sm90, and over pages from sm80 on in bf16 and fp16, and the
    call does not wait for the device. Elsewhere PyTorch computes it and waits. A CUDA graph may
    capture a call that a kernel serves; when it is replayed, the lengths, up to max_seqlen_q and
    max_seqlen_k, and the pages may be others.

    Raises TunefaError for arguments that do not fit. On CUDA the contents of cu_seqlens are not
    checked: if they are not cumulative lengths within q and k, or a sequence is longer than its
    max_seqlen, the behaviour is undefined.
    """
    if unknown:
        raise unknown_argument(flash_attention_varlen, unknown)
    # The checks of the calls say what is wrong with a missing length, or missing starts.
    lengths: Any = cu_seqlens_k, max_seqlen_q, max_seqlen_k
    starts_k, most_q, most_k = lengths
    if block_table is None:
        if not seqlens_k is k_descale is v_descale is out is None:
            _check_no_pages((seqlens_k, k_descale, v_descale, out))
        tensors = tuple.__new__(Tensors, (q, k, v, (cu_seqlens_q, starts_k), ()))
        options = Options.of(causal, window, PACKED, softcap, (most_q, most_k, deterministic))
        return attention(tensors, options, scale, return_lse, sinks)
    keys = _keys_in_pages(cu_seqlens_k, seqlens_k)
    most_k = 0 if most_k is None else most_k
    options = Options.of(causal, window, PACKED, softcap, (most_q, most_k, deterministic))
    given = q, k, v, cu_seqlens_q, keys, block_table, sinks, k_descale, v_descale
    found, lse = prefill.attention(PrefillTensors(*given), options, scale, out)
    return (found, lse) if return_lse else found


def _check_no_pages(given: Sequence[object]) -> None:
    """Raises TunefaError where an argument is given that goes with block_table."""
    for name, value in zip(("seqlens_k", "k_descale", "v_descale", "out"), given, strict=True):
        if value is not None:
            raise TunefaError(
                f"{name} is given without block_table: it goes with keys and values in pages, so "
                f"give block_table, or leave out {name}"
            )


def _keys_in_pages(cu_seqlens_k: object, seqlens_k: Tensor | None) -> Tensor:
    """Returns seqlens_k. Raises TunefaError unless it, and not cu_seqlens_k, is given."""
    if cu_seqlens_k is not None:
        raise TunefaError(
            "cu_seqlens_k is given with block_table: sequences in pages do not follow one another, "
            "so give seqlens_k, (batch,) in torch.int32, and None for cu_seqlens_k"
        )
    if seqlens_k is None:
        raise TunefaError(
            "seqlens_k is missing: with block_table give the number of keys of each sequence, "
            "(batch,) in torch.int32"
        )
    return seqlens_k
