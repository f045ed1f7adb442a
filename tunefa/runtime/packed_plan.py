"""What runs a call of `flash_attention_varlen`: a kernel, or PyTorch where none does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tunefa.measure import packed
from tunefa.runtime.kernel_plan import Launches, rows_contiguous
from tunefa.runtime.packed_call import PackedCall, PackedOptions, PackedTensors

if TYPE_CHECKING:  # it imports this module
    from tunefa.runtime.choice import Chosen


@dataclass(frozen=True)
class PackedKernelPlan:
    """Launches one compiled config, on the tensors' device and its current stream.

    As `KernelPlan`, for any lengths of the same powers of two.
    """

    chosen: Chosen
    launches: Launches
    rows_contiguous: bool
    """Whether those of q, k and v all are; they are copied where not."""

    @property
    def device_bytes(self) -> int:
        """Device memory that it holds; that of the tiles belongs to each call."""
        return self.launches.launch.device_bytes

    def run(self, tensors: PackedTensors, scale: float | None) -> tuple[Tensor, Tensor]:
        """(out, lse) of a call."""
        q, k, v, *cu_seqlens = tensors
        if not self.rows_contiguous:
            q, k, v = rows_contiguous(q, k, v)
        rows, heads, head_dim = q.shape
        out = q.new_empty((rows, heads, v.shape[2]))
        lse = q.new_empty((heads, rows), dtype=torch.float32)
        made = q, k, v, out, lse, *cu_seqlens
        launch = self.launches.launch
        if scale is not None and scale != float(head_dim**-0.5):
            launch = self.launches.of(scale, lambda: made)
        self.launches.start(launch, made)
        return out, lse


@dataclass(frozen=True)
class PackedPyTorchPlan:
    """Computes in PyTorch, one sequence after the other, and waits for the device to read where
    they begin."""

    chosen: Chosen
    options: PackedOptions
    device_bytes: int = 0

    def run(self, tensors: PackedTensors, scale: float | None) -> tuple[Tensor, Tensor]:
        """(out, lse) of a call."""
        return packed.attention(PackedCall.of(tensors, self.options, scale))
