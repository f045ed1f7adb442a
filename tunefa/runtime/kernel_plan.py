"""What runs a call by a kernel: the same few microseconds of Python each time."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tunefa.compile.contract import Launch
from tunefa.compile.launch.prepared import apart
from tunefa.measure import reference
from tunefa.runtime import call as calls
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.call import Descales, heads_first
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports this module
    from tunefa.runtime.choice import Chosen

MAX_SCALES = 4
"""Scales beside the default that a plan keeps launches for."""

MIN_UNREAD = 2**16
"""Elements of the smallest memory for an lse that nobody reads."""
_ONE_MAKER = threading.Lock()
"""Two threads that made such memory at once would keep one, and a graph might know the other."""


@dataclass(frozen=True)
class Launches:
    """Those of one compiled config on one device: for the default scale, which a plan is made with,
    and for the others that came last."""

    device: int
    launch: Launch
    """For the default scale."""
    prepare: Callable[[Sequence[Tensor], float], Launch]
    """A launch on tensors as kernels take them, for a scale."""
    _scales: BoundedCache[Launch] = field(default_factory=lambda: BoundedCache(MAX_SCALES))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, launch: Launch, tensors: Sequence[Tensor]) -> None:
        """Starts one on its device and that's current stream."""
        # torch.cuda.current_device() would ask first whether there is CUDA.
        if torch._C._cuda_getDevice() == self.device:
            launch(*tensors)
        else:
            with torch.cuda.device(self.device):
                launch(*tensors)

    def of(self, scale: float, tensors: Callable[[], Sequence[Tensor]]) -> Launch:
        """That for a scale; `tensors` says what one is prepared with, as kernels take it."""
        launch = self._scales.get(scale)
        if launch is None:
            with self._lock:
                launch = self._scales.get(scale)  # made by a thread that held the lock before
                if launch is None:
                    launch = self.prepare(tensors(), scale)
                    self._scales.add(scale, launch)
        return launch


@dataclass(frozen=True)
class KernelPlan:
    """Launches one compiled config, on the tensors' device and its current stream.

    A launch is prepared per scale: for the default one with the plan, for others when they come.
    """

    chosen: Chosen
    layout: str
    launches: Launches
    rows_contiguous: bool
    """Whether those of q, k and v all are; they are copied where not."""
    out_like_q: bool
    """Whether q has the shape, strides and dtype of out."""
    no_descales: tuple[Tensor, ...] = ()
    """What the kernel takes for descales that a call does not give; () if it takes none."""

    @property
    def device_bytes(self) -> int:
        """Device memory that it holds, but for that of scales other than the default."""
        return self.launches.launch.device_bytes

    @functools.cached_property
    def _out_shape(self) -> tuple[int, int, int, int]:
        w = self._workload
        if self.layout == "bhsd":
            return w.batch, w.heads, w.seqlen_q, w.head_dim_v
        return w.batch, w.seqlen_q, w.heads, w.head_dim_v

    @functools.cached_property
    def _lse_shape(self) -> tuple[int, int, int]:
        return self._workload.batch, self._workload.heads, self._workload.seqlen_q

    @functools.cached_property
    def _default_scale(self) -> float:
        return float(self._workload.head_dim**-0.5)

    @property
    def _workload(self) -> Workload:
        assert self.chosen.workload is not None
        return self.chosen.workload

    @functools.cached_property
    def _unread_lse(self) -> Tensor:
        elements = math.prod(self._lse_shape)
        room = max(MIN_UNREAD, 1 << (elements - 1).bit_length())
        with _ONE_MAKER:
            memory = _unread(self.launches.device, room)
        return memory[:elements].view(self._lse_shape)

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float | None, descales: Descales = ()
    ) -> tuple[Tensor, Tensor]:
        """(out, lse) of a call; out in the call's layout."""
        lse = q.new_empty(self._lse_shape, dtype=torch.float32)
        return self._run((q, k, v), lse, scale, descales), lse

    def output(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float | None, descales: Descales = ()
    ) -> Tensor:
        """The first of what `run` gives, without memory for the second, which takes as long."""
        return self._run((q, k, v), self._unread_lse, scale, descales)

    def _run(
        self, inputs: Sequence[Tensor], lse: Tensor, scale: float | None, descales: Descales
    ) -> Tensor:
        q, k, v = inputs
        if not self.rows_contiguous:
            q, k, v = rows_contiguous(q, k, v)
        # The former takes half of the latter's time.
        out = torch.empty_like(q) if self.out_like_q else self._new_out(q)
        more = self.no_descales
        if descales:
            more = calls.as_kernels_take_them(descales, more)
        tensors = (q, k, v, out, lse, *more)
        launch = self.launches.launch
        if scale is not None and scale != self._default_scale:
            launch = self.launches.of(scale, lambda: as_kernels_take_them(self.layout, *tensors))
        self.launches.start(launch, tensors)
        return out

    def _new_out(self, q: Tensor) -> Tensor:
        return q.new_empty(self._out_shape, dtype=reference.out_dtype(q.dtype))


@functools.cache
def _unread(device: int, elements: int) -> Tensor:
    """Where kernels put an lse that nobody asked for: (elements,), fp32.

    All launches of a device share it, whatever their streams. It stays, for graphs keep its
    address; for powers of two that is at most twice the largest.
    """
    made: Tensor = apart(device, lambda: torch.empty(elements, device=f"cuda:{device}"))
    return made


def as_kernels_take_them(
    layout: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, *others: Tensor
) -> tuple[Tensor, ...]:
    """Heads first, of tensors in `layout` whose rows are contiguous; `others` have no layout."""
    return *(heads_first(tensor, layout) for tensor in (q, k, v, out)), *others


def rows_contiguous(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """The tensors, those whose rows are not contiguous copied."""
    return tuple(tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, k, v))
