"""tunefa/compile/launch/triton_launch.py: the arguments of Triton's own launcher."""

from __future__ import annotations

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from tunefa.compile.launch.triton_launch import for_triton


def test_triton_s_own_launcher_gets_its_own_descriptors() -> None:
    tensor = torch.zeros(2, 4, 64, 64)
    made = for_triton({"map": tensor, "box": (1, 1, 16, 64)})
    assert isinstance(made, TensorDescriptor) and made.base is tensor
    assert (made.shape, made.strides) == ([2, 4, 64, 64], [16384, 4096, 64, 1])
    assert made.block_shape == [1, 1, 16, 64]
    view = {"map": tensor, "box": (16, 64), "shape": (512, 64), "strides": (64, 1)}
    assert for_triton(view).shape == [512, 64]
    assert for_triton(tensor) is tensor and for_triton(3) == 3
    assert for_triton((tensor, 2)) == 64, "the length of an axis"
