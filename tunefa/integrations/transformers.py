"""Attention for Hugging Face Transformers: `register`, then `attn_implementation="tunefa"`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from tunefa.errors import TunefaError
from tunefa.integrations import padding, transformers_masks
from tunefa.runtime.api import flash_attention
from tunefa.runtime.api_varlen import flash_attention_varlen
from tunefa.runtime.decode import decode_attention
from tunefa.spec.looked_up import MOST_QUERIES

NAME = "tunefa"
"""The name of the implementation. One with "flash" in it would be looked for on a server."""
_STARTS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def register() -> None:
    """Registers tunefa's attention and masks with Transformers, for `attn_implementation="tunefa"`.

    A second call changes nothing. Raises TunefaError where Transformers is missing, or has no
    interface for masks (before 4.53).
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise TunefaError(
            f"transformers cannot be used: {error}: install transformers 4.53 or newer"
        ) from error
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, transformers_masks.make)


def attention(
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Returns the attention of a layer, (batch, rows, heads, head_dim_v), and no weights.

    query is (batch, heads, rows, head_dim), key and value are (batch, heads_kv, keys, head_dim |
    head_dim_v). `attention_mask` is one of those that `transformers_masks.make` returns, or any
    that scaled_dot_product_attention takes. s_aux, (heads,), are sinks.

    Raises TunefaError for dropout, for a paged cache, and where a mask that only
    scaled_dot_product_attention computes comes with a soft-cap or with sinks.
    """
    _check(dropout, more)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    named: dict[str, Any] = {"causal": causal, "scale": scaling, "softcap": softcap or None}
    named["sinks"] = s_aux
    if sliding_window is not None:
        side = sliding_window - 1
        named["window"] = sliding_window if causal else (side, side)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    starts = [more.get(name) for name in _STARTS]
    if None not in starts:
        return _packed((q, k, v), starts, named), None
    if attention_mask is None:
        return flash_attention(q, k, v, **named), None
    if _is_user_s(attention_mask, q):
        return _in_pytorch(module, (query, key, value), attention_mask, named, more)
    return _masked((q, k, v), attention_mask, named), None


def _check(dropout: float, more: Mapping[str, Any]) -> None:
    if dropout > 0.0:
        raise TunefaError(
            f"dropout is {dropout}, and tunefa has no dropout: set attention_dropout=0.0 in the "
            f"model's config, or use attn_implementation='sdpa'"
        )
    for name in ("cache", "block_table"):
        if more.get(name) is not None:
            raise TunefaError(
                f"{name} is given, and tunefa has no paged cache of Transformers: call "
                f"model.generate, or use attn_implementation='sdpa' for continuous batching"
            )


def _is_user_s(mask: Tensor, q: Tensor) -> bool:
    """Whether a mask is none that tells which keys are there, see `transformers_masks`."""
    if mask.dtype in (torch.int8, torch.int32):
        return False
    keys_only = mask.dim() == 4 and mask.shape[:3] == (q.shape[0], 1, 1)
    return not keys_only or mask.dtype != torch.bool


def _masked(inputs: tuple[Tensor, ...], mask: Tensor, named: dict[str, Any]) -> Tensor:
    """Returns the attention under a mask of `transformers_masks`."""
    q, k, v = inputs
    if mask.dtype == torch.bool:
        keys = mask.shape[3]
        return _padded((q, k[:, :keys], v[:, :keys]), mask[:, 0, 0], named)
    if mask.dtype == torch.int32 and mask.numel() > 1:
        cu_seqlens = mask[0, 0, 0].contiguous()
        return _packed(inputs, [cu_seqlens, cu_seqlens, mask.shape[2], mask.shape[2]], named)
    if mask.dtype == torch.int8 or padding.needs_gradients(inputs):
        keys = mask.shape[3] if mask.dtype == torch.int8 else int(mask)
        out: Tensor = flash_attention(q, k[:, :keys], v[:, :keys], **named)
        return out
    return _over_cache(inputs, mask.reshape(1).expand(q.shape[0]).contiguous(), named)


def _packed(inputs: tuple[Tensor, ...], starts: list[Any], named: dict[str, Any]) -> Tensor:
    """Returns the attention of packed sequences, whose tensors have a batch all the same."""
    q, k, v = (x.flatten(0, 1) for x in inputs)
    cu_seqlens_q, cu_seqlens_k = (x.to(torch.int32) for x in starts[:2])
    longest = (int(starts[2]), int(starts[3]))
    out: Tensor = flash_attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *longest, **named)
    return out.reshape(*inputs[0].shape[:3], -1)


def _padded(inputs: tuple[Tensor, ...], valid: Tensor, named: dict[str, Any]) -> Tensor:
    """Returns the attention of sequences with padding; rows that are padding are 0.

    `valid`, (batch, keys), says which keys are no padding. Nothing waits for the device.
    """
    q, k, v = inputs
    rows, keys = q.shape[1], k.shape[1]
    is_step = rows <= MOST_QUERIES and rows < keys and named["causal"]
    if is_step and not padding.needs_gradients(inputs):
        places = padding.first(valid)[:, :, None, None]
        k, v = (x.gather(1, places.expand(-1, -1, *x.shape[2:])) for x in (k, v))
        return _over_cache((q, k, v), valid.sum(1, dtype=torch.int32), named)
    of_rows = None
    if rows > 1 and (named["causal"] or rows == keys):
        of_rows = valid[:, -rows:]  # queries are the last tokens
    return padding.attention(inputs, of_rows, valid, named)


def _over_cache(inputs: tuple[Tensor, ...], counts: Tensor, named: dict[str, Any]) -> Tensor:
    """Returns the attention of the last rows over the first `counts` keys of each sequence."""
    sinks = named["sinks"]
    over = {**named, "sinks": None if sinks is None else sinks.detach().float()}
    q, k, v = inputs
    out: Tensor = decode_attention(q, k, v, counts, **over)
    return out


def _in_pytorch(
    module: Module,
    inputs: tuple[Tensor, ...],
    mask: Tensor,
    named: dict[str, Any],
    more: dict[str, Any],
) -> tuple[Tensor, None]:
    """Returns what Transformers' own function makes of a mask that tunefa has no form of."""
    what = f"an attention mask of shape {tuple(mask.shape)}, {mask.dtype}"
    lacking = [name for name in ("softcap", "sinks") if named[name] is not None]
    if lacking:
        raise TunefaError(
            f"{what} comes with {' and '.join(lacking)}: tunefa has no such masks, and PyTorch's "
            f"scaled_dot_product_attention no {lacking[0]}: use attn_implementation='eager'"
        )
    warnings.warn(f"{what} is computed by scaled_dot_product_attention, not tunefa", stacklevel=2)
    from transformers import AttentionInterface

    sdpa: Any = AttentionInterface()["sdpa"]
    out: Tensor = sdpa(module, *inputs, mask, scaling=named["scale"], is_causal=False, **more)[0]
    return out, None
