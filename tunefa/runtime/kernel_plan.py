"""Runs a call by a kernel, with a few microseconds of Python each time."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from tunefa.compile.contract import Launch
from tunefa.compile.launch.prepared import apart
from tunefa.measure.attention_inputs import out_dtype
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.call import (
    PACKED,
    Tensors,
    as_kernels_take_them,
    heads_first,
    power_of_2,
)
from tunefa.runtime.choice import Chosen
from tunefa.spec.rounding import next_pow2
from tunefa.spec.workload import Workload

Returned = TypeVar("Returned")
MAX_SCALES = 4
"""The most scales beside the default that a plan keeps launches for."""

MIN_UNREAD_ELEMENTS = 2**16
"""Elements of the smallest memory for an lse that no caller reads."""
_UNREAD_LOCK = threading.Lock()
"""Makes sure that one thread at a time allocates such memory. Of two allocations only one would be
kept, and a CUDA graph might hold the address of the other."""


@dataclass(frozen=True)
class Launches:
    """The prepared launches of one compiled config on one device: one for the default scale, and
    those for the other scales that were used last."""

    device: int
    launch: Launch
    """The launch for the default scale."""
    prepare: Callable[[Sequence[Tensor], float], Launch]
    """Prepares a launch for a scale, on tensors as kernels take them."""
    _scales: BoundedCache[Launch] = field(default_factory=lambda: BoundedCache(MAX_SCALES))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, launch: Launch, tensors: Sequence[Tensor]) -> None:
        """Starts a launch on its device, on the current stream there."""
        # torch.cuda.current_device() is slower: it first checks that CUDA is initialised.
        if torch._C._cuda_getDevice() == self.device:
            launch(*tensors)
        else:
            with torch.cuda.device(self.device):
                launch(*tensors)

    def on_device(self, work: Callable[[], Returned]) -> Returned:
        """Returns `work()`, called while the launches' device is the current one."""
        if torch._C._cuda_getDevice() == self.device:
            return work()
        with torch.cuda.device(self.device):
            return work()

    def for_scale(self, scale: float, tensors: Callable[[], Sequence[Tensor]]) -> Launch:
        """The launch for a scale; `tensors` returns the tensors to prepare it with."""
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

    A plan serves dense tensors of one shape, or packed tensors whose lengths round up to the same
    powers of two. There is a launch for each scale: that for the default scale is prepared with the
    plan, others when they are needed.
    """

    chosen: Chosen
    layout: str
    launches: Launches
    rows_contiguous: bool
    """Whether the rows of q, k and v are contiguous. If not, they are copied in each call."""
    out_like_q: bool
    """Whether q has the shape, strides and dtype of out."""
    no_descales: tuple[Tensor, ...] = ()
    """The tensors that stand for missing descales; () if the kernel takes none."""

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that the plan holds for the default scale. Tables of packed tiles
        are not counted, as they belong to a call."""
        return self.launches.launch.device_bytes

    @functools.cached_property
    def _dense(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The shapes of out and lse; None for packed sequences, where the number of rows varies."""
        w = self._workload
        if self.layout == PACKED:
            return None
        of_rows = (w.heads, w.seqlen_q) if self.layout == "bhsd" else (w.seqlen_q, w.heads)
        return (w.batch, *of_rows, w.head_dim_v), (w.batch, w.heads, w.seqlen_q)

    @functools.cached_property
    def _unread_packed(self) -> dict[int, Tensor]:
        """Memory for an lse of packed rows that no caller reads, by the number of rows that there
        is room for. Plans serve calls with one such number. Kernels take the distance of two heads
        from its shape."""
        return {}

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
        return unread_lse(self.launches.device, elements)[:elements].view(shape)

    def run(
        self, tensors: Tensors, scale: float | None, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse), with `out` in the call's layout. It is `out` if given,
        which has to be contiguous and 16-byte aligned."""
        q = tensors.q
        shape = self._dense[1] if self._dense else (self._workload.heads, q.shape[0])
        lse = new_lse(q, shape)
        return self._run(tensors, lse, scale, out), lse

    def output(self, tensors: Tensors, scale: float | None) -> Tensor:
        """Runs a call; returns `out`. No memory is allocated for lse."""
        if self._dense is None:
            return self._run(tensors, self._unread_packed_lse(tensors.q.shape[0]), scale)
        return self._run(tensors, self._unread_lse, scale)

    def _unread_packed_lse(self, rows: int) -> Tensor:
        """Memory for an lse of so many packed rows, or more: a view for each number of rows would
        take as long as an allocation."""
        most = power_of_2(rows)
        found = self._unread_packed.get(most)
        if found is None:
            heads = self._workload.heads
            memory = unread_lse(self.launches.device, heads * most)
            found = self._unread_packed[most] = memory.as_strided((heads, most), (most, 1))
        return found

    def _run(
        self, tensors: Tensors, lse: Tensor, scale: float | None, out: Tensor | None = None
    ) -> Tensor:
        q, k, v, cu_seqlens, descales = tensors
        if not self.rows_contiguous:
            q, k, v = with_contiguous_rows(q, k, v)
        if out is None:  # empty_like takes half of the time of new_empty
            out = torch.empty_like(q) if self.out_like_q else self._new_out(q)
        more: tuple[Tensor, ...] = cu_seqlens or self.no_descales
        if descales:
            more = as_kernels_take_them(descales, more)
        given = (q, k, v, out, lse, *more)
        launch = self.launches.launch
        if scale is not None and scale != self._default_scale:
            launch = self.launches.for_scale(scale, lambda: all_heads_first(given, self.layout))
        self.launches.start(launch, given)
        return out

    def _new_out(self, q: Tensor) -> Tensor:
        w = self._workload
        shape = self._dense[0] if self._dense else (q.shape[0], w.heads, w.head_dim_v)
        return q.new_empty(shape, dtype=out_dtype(q.dtype))


def new_lse(q: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns an uninitialised lse of this shape on q's device: (batch, heads, seqlen_q), or
    (heads, rows) of packed sequences."""
    rows = shape[-1]
    steps = (rows, 1) if len(shape) == 2 else (shape[1] * rows, rows, 1)
    # empty_strided takes half of the time of new_empty.
    return torch.empty_strided(shape, steps, dtype=torch.float32, device=q.device)


def unread_lse(device: int, elements: int) -> Tensor:
    """Returns memory of at least so many elements for an lse that the caller did not ask for."""
    with _UNREAD_LOCK:
        return _unread(device, max(MIN_UNREAD_ELEMENTS, next_pow2(elements)))


@functools.cache
def _unread(device: int, elements: int) -> Tensor:
    """The memory for an lse that the caller did not ask for: (elements,), fp32.

    All launches of a device share it, on any stream. It is never freed, because CUDA graphs hold
    its address. With sizes that are powers of two, all of it is at most twice the largest.
    """
    place = torch.device("cuda", device)
    # The default dtype is the user's: programs that infer often set it to bf16.
    made: Tensor = apart(device, lambda: torch.empty(elements, dtype=torch.float32, device=place))
    return made


def all_heads_first(tensors: Sequence[Tensor], layout: str) -> tuple[Tensor, ...]:
    """Returns (q, k, v, out, lse, ...) of a layout with heads first, as launches are prepared."""
    return *(heads_first(tensor, layout) for tensor in tensors[:4]), *tensors[4:]


def with_contiguous_rows(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Returns q, k and v; a tensor whose rows are not contiguous is copied."""
    return tuple(tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, k, v))
