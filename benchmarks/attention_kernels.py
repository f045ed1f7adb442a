"""The device time of a program: tunefa's kernels, other attention, and the rest.

Kernels are told apart by their names. Those of tunefa are the functions in kernels/. Other
attention is FlashAttention, inside PyTorch or not; the memory-efficient attention (`fmha_`); and
all of cuDNN, which otherwise computes convolutions.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tunefa.assets import root

OTHERS = re.compile("flash_|flash::|FlashAttention|cudnn|fmha_")
"""Parts of the names of attention kernels that are not tunefa's."""
_BOUNDS = r"(?:__launch_bounds__\([^)]*\)|LAUNCH_BOUNDS)"
_CUDA = re.compile(rf"__global__ void {_BOUNDS}\s+(\w+)\(")


@functools.cache
def own_names() -> frozenset[str]:
    """The names of tunefa's functions on the device."""
    found: set[str] = set()
    for path in root("kernels").rglob("*"):
        if path.suffix in (".cu", ".cuh"):
            found.update(_CUDA.findall(path.read_text(encoding="utf-8")))
        elif path.suffix == ".py":
            found.update(_jit_functions(path.read_text(encoding="utf-8")))
    return frozenset(found)


def _jit_functions(source: str) -> Iterator[str]:
    """The names of functions of Triton and Gluon, whose decorator ends with `jit`."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            decorators = [ast.unparse(each).partition("(")[0] for each in node.decorator_list]
            if any(each.endswith("jit") for each in decorators):
                yield node.name


@dataclass
class DeviceTime:
    """The ms on the device of each kernel of a program."""

    kernels: Mapping[str, float] = field(default_factory=dict)

    @property
    def total_ms(self) -> float:
        """The time of all kernels, copies and fills of memory."""
        return sum(self.kernels.values())

    @property
    def own_ms(self) -> float:
        """The time of tunefa's kernels."""
        return sum(ms for name, ms in self.kernels.items() if name in own_names())

    @property
    def attention_ms(self) -> float:
        """The time of all attention."""
        others = (name for name in self.kernels if name not in own_names())
        return self.own_ms + sum(self.kernels[name] for name in others if OTHERS.search(name))


def device_time(work: Callable[[], Any]) -> DeviceTime:
    """The kernels that a function launches on the device, by PyTorch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    cuda: Any = torch.cuda
    cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        work()
        cuda.synchronize()
    kernels: dict[str, float] = {}
    for event in seen.events():  # those of the host are its calls of CUDA
        if event.device_type.name == "CUDA":
            elapsed = event.time_range.elapsed_us() / 1e3
            kernels[event.name] = kernels.get(event.name, 0.0) + elapsed
    return DeviceTime(kernels)
