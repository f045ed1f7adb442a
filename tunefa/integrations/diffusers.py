"""Attention for Hugging Face Diffusers: `register`, then `set_attention_backend("tunefa")`.

Source of the interface: diffusers/models/attention_dispatch.py of 0.42.1. Diffusers has a closed
list of backends, an enum, and no function that adds one. `register` adds a member to it.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.integrations import padding
from tunefa.integrations.compat.arguments import Sides, window
from tunefa.runtime.api import flash_attention

NAME = "tunefa"


def register() -> None:
    """Adds tunefa to the attention backends of Diffusers.

    From then on `model.set_attention_backend("tunefa")` takes it, for pipelines
    `pipe.transformer.set_attention_backend("tunefa")`. A second call changes nothing. Raises
    TunefaError where Diffusers is missing, or has no such backends (before 0.35).
    """
    try:
        from diffusers.models.attention_dispatch import (
            AttentionBackendName,
            _AttentionBackendRegistry,
            _check_device,
            _check_shape,
        )
    except ImportError as error:
        raise TunefaError(
            f"diffusers cannot be used: {error}: install diffusers 0.35 or newer"
        ) from error
    add = _AttentionBackendRegistry.register
    add(_member(AttentionBackendName), constraints=[_check_device, _check_shape])(attention)


def _member(names: Any) -> Any:
    """The member of Diffusers' enum of backends that stands for tunefa; a new one at first."""
    for each in names:
        if each.value == NAME:
            return each
    member = str.__new__(names, NAME)
    member._name_, member._value_ = NAME.upper(), NAME
    names._member_names_.append(member._name_)
    names._member_map_[member._name_] = member
    names._value2member_map_[NAME] = member
    return member


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window_size: Sides = (-1, -1),
    return_lse: bool = False,
    _parallel_config: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns the attention of query, (batch, rows, heads, head_dim), over key and value, (batch,
    keys, heads_kv, head_dim); with `return_lse` also lse, (batch, heads, rows).

    A mask that says which keys are there, in torch.bool of (batch or 1, keys) or of (batch or 1, 1,
    1, keys), takes them out. Others are computed by PyTorch's scaled_dot_product_attention, with a
    warning, as are causal masks with another number of keys, which it aligns to the top left.

    Raises TunefaError for dropout, context parallelism, and where only PyTorch's function has a
    mask and `window_size` or `return_lse` are given, too.
    """
    _check(dropout_p, _parallel_config)
    valid = None if attn_mask is None else _keys(attn_mask, query.shape[0], key.shape[1])
    is_top_left = is_causal and query.shape[1] != key.shape[1]
    if is_top_left or (attn_mask is not None and (valid is None or is_causal or return_lse)):
        what = "a causal mask aligned to the top left"
        if attn_mask is not None:
            what = f"a mask of shape {tuple(attn_mask.shape)}, {attn_mask.dtype}"
        _warn(what, window_size=tuple(window_size) != (-1, -1), return_lse=return_lse)
        more = attn_mask, dropout_p, is_causal, scale, enable_gqa
        return _in_pytorch(query, key, value, *more)
    named: dict[str, Any] = {"causal": is_causal, "scale": scale}
    named["window"] = window(window_size, is_causal)
    if valid is not None:
        return padding.attention((query, key, value), None, valid, named)
    return flash_attention(query, key, value, **named, return_lse=return_lse)


def _check(dropout: float, parallel_config: Any) -> None:
    if dropout > 0.0:
        raise TunefaError(
            f"dropout_p is {dropout}, and tunefa has no dropout: set it to 0.0, or choose the "
            f"attention backend 'native'"
        )
    if parallel_config is not None:
        raise TunefaError(
            "context parallelism is on, and tunefa's backend has none: choose another attention "
            "backend, such as 'native'"
        )


def _keys(mask: Tensor, batch: int, keys: int) -> Tensor | None:
    """The keys that are there, (batch, keys), of a mask that says just that; else None."""
    if mask.dtype != torch.bool:
        return None
    if mask.dim() == 4 and mask.shape[1:3] == (1, 1):
        mask = mask[:, 0, 0]
    if mask.dim() != 2 or mask.shape[1] != keys or mask.shape[0] not in (1, batch):
        return None
    return mask.expand(batch, keys)


def _warn(what: str, **given: bool) -> None:
    """Warns that PyTorch computes a mask. Raises TunefaError for arguments that it has not."""
    for name in (name for name, is_given in given.items() if is_given):
        raise TunefaError(
            f"{what} comes with {name}: tunefa has no such mask, and PyTorch's "
            f"scaled_dot_product_attention no {name}"
        )
    warnings.warn(f"{what} is computed by scaled_dot_product_attention, not tunefa", stacklevel=3)


def _in_pytorch(*arguments: Any) -> Tensor:
    """Returns what Diffusers' own function makes of a call, with the arguments as they are."""
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    native: Any = _AttentionBackendRegistry._backends[AttentionBackendName.NATIVE]
    out: Tensor = native(*arguments)
    return out
