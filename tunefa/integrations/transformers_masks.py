"""Masks as tunefa's attention function for Transformers takes them: small tensors with four axes.

A model asks for a mask once and gives it to every layer, so what needs a copy to the host is done
here, once. Transformers and torch.compile pass tensors with four axes on as they are. So all that a
layer must know is in a mask's shape and dtype:

    None                           every row sees all keys, under the causal mask of the layer
    int8, (1, 1, 1, n)             only the first n keys of a static cache are there; no values
    int32, (1, 1, 1, 1)            the same, with n on the device
    int32, (1, 1, longest, n + 1)  cu_seqlens of n packed sequences, and the length of the longest
    bool, (batch, 1, 1, keys)      which keys are no padding
    any other                      a mask that has no other form, from the user or from Transformers
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling


def make(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    **form: Any,
) -> Tensor | None:
    """Returns the mask of a forward pass, for `transformers.AttentionMaskInterface`.

    `attention_mask` is (batch, tokens), true where a token is no padding. `mask_function(batch,
    head, row, key)` says whether a row sees a key; `form` says more about it.
    """
    asked = _Asked(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, form)
    if asked.is_special:
        starts = None if attention_mask is not None else asked.starts()
        return asked.in_full(attention_mask) if starts is None else _packed(starts)
    keys = asked.keys
    if attention_mask is not None:
        padding = _padding(attention_mask[:, -kv_length:], keys, kv_length)
        if padding is not None:
            return padding
    if isinstance(keys, Tensor):
        return keys.to(torch.int32).reshape(1, 1, 1, 1)
    return None if keys == kv_length else torch.empty(1, 1, 1, keys, dtype=torch.int8)


@dataclass(frozen=True)
class _Asked:
    """A mask that a model asks for."""

    batch_size: int
    q_length: int
    kv_length: int
    q_offset: int | Tensor
    kv_offset: int
    mask_function: Callable[..., Any] | None
    form: dict[str, Any]

    @property
    def is_causal(self) -> bool:
        """Whether the mask is a causal one."""
        return "allow_is_bidirectional_skip" not in self.form

    @property
    def is_special(self) -> bool:
        """Whether a row may see other keys than by a causal mask, a window and padding."""
        form = self.form
        if form.get("use_vmap"):  # the model, or its user, has a function of its own
            return True
        if getattr(form.get("config"), "attention_chunk_size", None) and form.get("local_size"):
            return bool(self.kv_length > form["local_size"])
        skips: bool = form.get("allow_is_causal_skip", True)
        return self.is_causal and self.q_length > 1 and not skips

    @property
    def keys(self) -> int | Tensor:
        """The number of keys that are there: all, or a part of a static cache."""
        if not self.is_causal:
            return self.kv_length
        keys = self.q_offset + self.q_length - self.kv_offset
        if isinstance(keys, Tensor) and self.q_length > 1:
            keys = int(keys)  # a step of many rows reads the keys in one piece
        return keys if isinstance(keys, Tensor) else min(keys, self.kv_length)

    def starts(self) -> Tensor | None:
        """Whether a row is the first of its sequence, (batch, rows); None where the mask is not
        that of packed sequences, one after the other, with causal masks."""
        if self.q_length != self.kv_length or self.form.get("use_vmap") or not self.is_causal:
            return None
        see = self.mask_function
        if see is None or isinstance(self.q_offset, Tensor) or self.q_offset:
            return None
        device = self.form.get("device", "cpu")
        batch = torch.arange(self.batch_size, device=device)[:, None]
        row = torch.arange(1, self.q_length, device=device)[None]
        zero = torch.zeros((), dtype=torch.long, device=device)
        if bool(torch.as_tensor(see(batch, zero, row - 1, row)).any()):
            return None  # a row sees a later key
        before = torch.as_tensor(see(batch, zero, row, row - 1), device=device)
        first = torch.ones(self.batch_size, 1, dtype=torch.bool, device=device)
        return torch.cat([first, ~before.expand(self.batch_size, -1)], 1)

    def in_full(self, attention_mask: Tensor | None) -> Tensor:
        """The mask of every row and key, as PyTorch's scaled_dot_product_attention takes it."""
        from transformers.masking_utils import sdpa_mask

        skip = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        sizes = (self.batch_size, self.q_length, self.kv_length, self.q_offset, self.kv_offset)
        made: Tensor = sdpa_mask(
            *(*sizes, self.mask_function, attention_mask), **{**self.form, **skip}
        )
        return made


def _packed(starts: Tensor) -> Tensor:
    """The cumulative lengths of packed sequences, by the rows that begin one."""
    begins = starts.flatten().nonzero()[:, 0].to(torch.int32)
    cu_seqlens = torch.cat([begins, begins.new_full((1,), starts.numel())])
    longest = int(cu_seqlens.diff().max())
    return cu_seqlens.expand(1, 1, longest, -1)


def _padding(attention_mask: Tensor, keys: int | Tensor, kv_length: int) -> Tensor | None:
    """The keys that are no padding, (batch, 1, 1, keys); None if all that are there are not."""
    valid = attention_mask.bool()
    if isinstance(keys, int):
        valid = valid[:, :keys]
        if not is_compiling() and bool(valid.all()):
            return None
        return valid[:, None, None]
    if not is_compiling() and bool(valid.all()):
        return None
    valid = torch.nn.functional.pad(valid, (0, kv_length - valid.shape[1]))
    place = torch.arange(kv_length, device=valid.device)
    return (valid & (place < keys))[:, None, None]
