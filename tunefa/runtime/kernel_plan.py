"""What runs a call by a kernel: the same few microseconds of Python each time."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tunefa.compile.contract import Launch
from tunefa.compile.launch.prepared import apart
from tunefa.measure.attention_inputs import out_dtype
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.call import PACKED, Tensors, as_kernels_take_them, heads_first
from tunefa.runtime.choice import Chosen
from tunefa.spec.rounding import next_pow2
from tunefa.spec.workload import Workload

MAX_SCALES = 4
"""Scales beside the default that a plan keeps launches for."""

MIN_UNREAD = 2**16
"""Elements of the smallest memory for an lse that no caller reads."""
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

    It serves one shape of dense tensors, and all packed ones whose lengths have the same powers of
    two. A launch is prepared per scale: for the default one with the plan, for others when they
    come.
    """

    chosen: Chosen
    layout: str
    launches: Launches
    rows_contiguous: bool
    """Whether the rows of q, k and v all are; they are copied where not."""
    out_like_q: bool
    """Whether q has the shape, strides and dtype of out."""
    no_descales: tuple[Tensor, ...] = ()
    """What the kernel takes for descales that a call does not give; () if it takes none."""

    @property
    def device_bytes(self) -> int:
        """Device memory that it holds, but for that of scales other than the default, and that of
        packed tiles, which belongs to each call."""
        return self.launches.launch.device_bytes

    @functools.cached_property
    def _dense(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The shapes of out and lse; None of packed sequences, where they change with the rows."""
        w = self._workload
        if self.layout == PACKED:
            return None
        of_rows = (w.heads, w.seqlen_q) if self.layout == "bhsd" else (w.seqlen_q, w.heads)
        return (w.batch, *of_rows, w.head_dim_v), (w.batch, w.heads, w.seqlen_q)

    @functools.cached_property
    def _default_scale(self) -> float:
        return float(self._workload.head_dim**-0.5)

    @property
    def _workload(self) -> Workload:
        assert self.chosen.workload is not None
        return self.chosen.workload

    @functools.cached_property
    def _unread_lse(self) -> Tensor:
        assert self._dense is not None
        _, shape = self._dense
        elements = math.prod(shape)
        room = max(MIN_UNREAD, next_pow2(elements))
        with _ONE_MAKER:
            memory = _unread(self.launches.device, room)
        return memory[:elements].view(shape)

    def run(self, tensors: Tensors, scale: float | None) -> tuple[Tensor, Tensor]:
        """(out, lse) of a call; out in the call's layout."""
        q = tensors.q
        shape = self._dense[1] if self._dense else (self._workload.heads, q.shape[0])
        lse = q.new_empty(shape, dtype=torch.float32)
        return self._run(tensors, lse, scale), lse

    def output(self, tensors: Tensors, scale: float | None) -> Tensor:
        """The first of what `run` gives; dense, it needs no memory for the second."""
        if self._dense is None:
            return self.run(tensors, scale)[0]
        return self._run(tensors, self._unread_lse, scale)

    def _run(self, tensors: Tensors, lse: Tensor, scale: float | None) -> Tensor:
        q, k, v, cu_seqlens, descales = tensors
        if not self.rows_contiguous:
            q, k, v = rows_contiguous(q, k, v)
        # The former takes half of the latter's time.
        out = torch.empty_like(q) if self.out_like_q else self._new_out(q)
        more: tuple[Tensor, ...] = cu_seqlens or self.no_descales
        if descales:
            more = as_kernels_take_them(descales, more)
        given = (q, k, v, out, lse, *more)
        launch = self.launches.launch
        if scale is not None and scale != self._default_scale:
            launch = self.launches.of(scale, lambda: all_heads_first(given, self.layout))
        self.launches.start(launch, given)
        return out

    def _new_out(self, q: Tensor) -> Tensor:
        w = self._workload
        shape = self._dense[0] if self._dense else (q.shape[0], w.heads, w.head_dim_v)
        return q.new_empty(shape, dtype=out_dtype(q.dtype))


@functools.cache
def _unread(device: int, elements: int) -> Tensor:
    """The memory where kernels put an lse that the caller did not ask for: (elements,), fp32.

    All launches of a device share it, whatever their streams. It stays, for graphs keep its
    address; for powers of two that is at most twice the largest.
    """
    made: Tensor = apart(device, lambda: torch.empty(elements, device=f"cuda:{device}"))
    return made


def all_heads_first(tensors: Sequence[Tensor], layout: str) -> tuple[Tensor, ...]:
    """(q, k, v, out, lse, ...) of a layout as kernels are prepared for them."""
    return *(heads_first(tensor, layout) for tensor in tensors[:4]), *tensors[4:]


def rows_contiguous(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """The tensors, those whose rows are not contiguous copied."""
    return tuple(tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, k, v))
