"""Small packed sequences for calls of attention, and the reference of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import tunefa
from tests.support.packed_sequences import starts
from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.runtime.call import PACKED, Options, Tensors, Window

SEQLENS = (5, 0, 9, 2)


MASKS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": True, "window": 3},
    {"window": (2, 1), "softcap": 1.5},
    {"window": (None, 2)},
    {"window": (2, None)},
]


def tensors(
    *seqlens: int, keys: tuple[int, ...] = (), dtype: torch.dtype = torch.float32
) -> Tensors:
    seqlens = seqlens or SEQLENS
    keys = keys or seqlens
    generator = torch.Generator().manual_seed(0)

    def normal(rows: int, heads: int, head_dim: int) -> Tensor:
        return torch.randn(rows, heads, head_dim, generator=generator, dtype=dtype)

    q, k, v = normal(sum(seqlens), 4, 32), normal(sum(keys), 2, 32), normal(sum(keys), 2, 16)
    return Tensors(q, k, v, (starts(*seqlens), starts(*keys)))


def flat(made: Tensors) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the arguments as `flash_attention_varlen` takes them."""
    assert made.cu_seqlens is not None
    return made.q, made.k, made.v, *made.cu_seqlens


def changed(made: Tensors, **changes: Tensor) -> Tensors:
    """With some of the tensors exchanged, by `flash_attention_varlen`'s names."""
    names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
    q, k, v, starts_q, starts_k = {**dict(zip(names, flat(made), strict=True)), **changes}.values()
    return Tensors(q, k, v, (starts_q, starts_k))


def packed_options(*given: Any) -> Options:
    """Options with these max_seqlen_q, max_seqlen_k and mask, in their order."""
    max_seqlen_q, max_seqlen_k, *mask = given
    defaults: list[Any] = [False, None, None, None]
    causal, left, right, softcap = [*mask, *defaults[len(mask) :]]
    return Options(causal, left, right, PACKED, softcap, max_seqlen_q, max_seqlen_k)


def call(made: Tensors, **options: Any) -> Any:
    return tunefa.flash_attention_varlen(*flat(made), 9, 9, **options)


def inputs(made: Tensors, causal: bool, scale: float, *mask: Any) -> AttentionInputs:
    """The same for the reference; `mask` is window_left, window_right and softcap."""
    q, k, v, cu_seqlens, _ = made
    left, right, softcap = mask or (None, None, None)
    return AttentionInputs(q, k, v, causal, scale, left, right, softcap, (), cu_seqlens)


def right(
    made: Tensors, causal: bool = False, window: Window = None, softcap: float | None = None
) -> Any:
    one = Options.of(causal, window)
    mask = (one.window_left, one.window_right)
    return reference.attention(inputs(made, one.causal, 32**-0.5, *mask, softcap))
