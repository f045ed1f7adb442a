"""tunefa/runtime/family_call.py: which calls are of one family, and the sizes of tensors."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
import torch

from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.family_call import contiguous, family_call
from tunefa.runtime.plan_key import plan_key

OPTIONS = Options(True)


def tensors(rows: int, keys: int, batch: int = 2, dtype: torch.dtype = torch.float32) -> Tensors:
    """Four query heads and two KV heads."""
    shapes = (rows, 4), (keys, 2), (keys, 2)
    q, k, v = (torch.zeros(batch, *each, 32, dtype=dtype) for each in shapes)
    return Tensors(q, k, v)


def family_of(given: Tensors, options: Options) -> Hashable:
    call = family_call(plan_key(given, options), options)
    return None if call is None else call.family


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_sizes_have_heads_first(layout: str) -> None:
    given = tensors(16, 24)
    if layout == "bhsd":
        q, k, v = (x.transpose(1, 2).contiguous() for x in given[:3])
        given = Tensors(q, k, v)
    options = OPTIONS._replace(layout=layout)
    call = family_call(plan_key(given, options), options)
    assert call is not None and call.lengths == (2, 16, 24)
    for sizes, tensor in zip(call.sizes, given[:3], strict=True):
        view = tensor if layout == "bhsd" else tensor.transpose(1, 2)
        assert sizes == (*view.shape, *view.stride()) == contiguous(tuple(view.shape), layout)


def test_families_differ_in_all_but_batch_and_lengths() -> None:
    base = tensors(16, 24)
    key = family_of(base, OPTIONS)
    assert key is not None and key == family_of(tensors(40, 100, batch=1), OPTIONS)
    grown = torch.randn(2, 100, 2, 32)[:, :24]  # a cache of keys
    assert key == family_of(base._replace(k=grown, v=grown), OPTIONS)
    others = [
        family_of(tensors(16, 24, dtype=torch.bfloat16), OPTIONS),
        family_of(base, OPTIONS._replace(causal=False)),
        family_of(base, OPTIONS._replace(softcap=3.0)),
        family_of(base._replace(k=base.k[:, :, :1], v=base.v[:, :, :1]), OPTIONS),
    ]
    assert None not in others and len({key, *others}) == 5


WIDE = torch.randn(2, 16, 4, 32)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"q": WIDE[..., :31]}, {}),
        ({"q": torch.randn(2 * 16 * 4 * 32 + 1)[1:].view(2, 16, 4, 32)}, {}),
        ({"q": WIDE[:, :, :1].expand(-1, -1, 4, -1)}, {}),
        ({"q": WIDE[:1]}, {}),
        ({"q": WIDE.transpose(2, 3)}, {}),
        ({"q": torch.randn(2, 16, 4, 32).as_strided((2, 1, 4, 32), (128, 1, 32, 1))}, {}),
        ({"q": WIDE[:, :0]}, {}),
        ({"q": WIDE[0]}, {}),
        ({"k": torch.randn(2, 25, 2, 32)}, {}),
        ({"v": torch.randn(2, 24, 2, 24)}, {}),
        ({"descales": (None, None, torch.ones(2, 2))}, {}),
        ({"cu_seqlens": (torch.zeros(3), torch.zeros(3))}, {}),
        ({}, {"window_left": 3}),
        ({}, {"causal": False, "window_right": 3}),
    ],
)
def test_calls_without_a_family(changes: dict[str, Any], options: dict[str, Any]) -> None:
    """They are planned one by one, where wrong arguments are named."""
    assert family_of(tensors(16, 24)._replace(**changes), OPTIONS._replace(**options)) is None
