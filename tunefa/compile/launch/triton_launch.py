"""Launches by Triton's own launcher, and the arguments that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


class TritonLaunch:
    """A launch by Triton's own launcher, for kernels that `PreparedLaunch` cannot launch.

    It takes 40 to 100 us of host time.
    """

    device_bytes = 0

    def __init__(self, binary: Any, host_side: Any, views: Sequence[Any]) -> None:
        self._binary, self._host_side, self._views = binary, host_side, views

    def __call__(self, *tensors: Tensor) -> None:
        """Starts the kernel; see `tunefa.compile.contract.Launch`."""
        each = zip(tensors, self._views, strict=True)
        grid, arguments = self._host_side([tensor.as_strided(*view) for tensor, view in each])
        self._binary[grid](*map(for_triton, arguments))


def for_triton(argument: Any) -> Any:
    """Converts an argument for Triton's launcher and interpreter."""
    if isinstance(argument, tuple):  # the length of an axis
        tensor, axis = argument
        return tensor.shape[axis]
    if not isinstance(argument, dict):
        return argument
    from triton.tools.tensor_descriptor import TensorDescriptor

    tensor, box = argument["map"], argument["box"]
    shape, strides = argument.get("shape", tensor.shape), argument.get("strides", tensor.stride())
    return TensorDescriptor(tensor, list(shape), list(strides), list(box))
