"""tunefa/runtime/new_tensors.py: tensors are the same with PyTorch's dispatcher and without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tunefa.runtime import new_tensors

DIRECT: Any = torch._C._dynamo.guards
SHAPE, STEPS = (2, 5, 3, 16), (400, 48, 16, 1)


def looks(made: Tensor) -> tuple[object, ...]:
    owner = made.untyped_storage().nbytes()
    return made.shape, made.stride(), made.dtype, made.device, made.requires_grad, owner


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_both_make_the_same(dtype: torch.dtype) -> None:
    found = new_tensors.on_device(-1)(SHAPE, STEPS, dtype)
    assert looks(found) == looks(torch.empty_strided(SHAPE, STEPS, dtype=dtype))
    assert looks(found) == looks(new_tensors.dispatched(-1)(SHAPE, STEPS, dtype))
    assert found.data_ptr() % 16 == 0


def test_this_pytorch_has_functions_without_the_dispatcher() -> None:
    assert new_tensors.on_device(-1) is DIRECT._empty_strided_cpu
    assert new_tensors.on_device(0) is DIRECT._empty_strided_cuda


def test_another_pytorch_may_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(DIRECT, "_empty_strided_cpu")
    made = new_tensors.on_device(-1)
    assert looks(made(SHAPE, STEPS, torch.float32)) == looks(torch.empty_strided(SHAPE, STEPS))
