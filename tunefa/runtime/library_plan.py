"""Runs a call by an installed library, which allocates the output itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tunefa.runtime.call import Tensors, heads_first
from tunefa.runtime.choice import Chosen
from tunefa.runtime.kernel_plan import Launches
from tunefa.spec.workload import Workload


@dataclass(frozen=True)
class LibraryPlan:
    """Calls a library on the tensors of a call, on their device and its current stream."""

    chosen: Chosen
    layout: str
    launches: Launches
    device_bytes = 0

    def run(self, tensors: Tensors, scale: float | None) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse), with `out` contiguous in the call's layout."""
        q, k, v, cu_seqlens, _ = tensors
        given = *(heads_first(x, self.layout) for x in (q, k, v)), None, None, *(cu_seqlens or ())
        out, lse = results(self.launches, given, scale, self.chosen.workload)
        return heads_first(out, self.layout).contiguous(), lse.contiguous()

    def output(self, tensors: Tensors, scale: float | None) -> Tensor:
        """Runs a call; returns `out` alone."""
        return self.run(tensors, scale)[0]


def results(
    launches: Launches, tensors: tuple[Any, ...], scale: float | None, workload: Workload | None
) -> tuple[Tensor, ...]:
    """Returns the results of a library for the tensors of a launch, None for its outputs.

    `workload` is that of the plan; its head_dim gives the default scale.
    """
    launch: Any = launches.launch
    assert workload is not None
    if scale is not None and scale != workload.head_dim**-0.5:
        launch = launches.for_scale(scale, lambda: tensors)
    found: tuple[Tensor, ...] = launches.on_device(lambda: launch.results(*tensors))
    return found
