"""New tensors for results, with memory that is not initialised.

PyTorch's dispatcher takes longer than the allocation that it leads to. The programs that
torch.compile writes allocate by functions without it, and so do calls here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NewTensor = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]
"""Returns a tensor with this shape, these strides and this dtype."""


def on_device(device: int) -> NewTensor:
    """Returns what makes tensors on a CUDA device while it is the current one; -1 is the CPU."""
    direct: Any = torch._C._dynamo.guards
    name = "_empty_strided_cpu" if device < 0 else "_empty_strided_cuda"
    found: NewTensor = getattr(direct, name, None) or dispatched(device)
    return found


def dispatched(device: int) -> NewTensor:
    """Does the same by PyTorch's dispatcher, for versions of PyTorch without these functions."""
    place = torch.device("cpu" if device < 0 else f"cuda:{device}")

    def made(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=place)

    return made
