"""Plans of calls over a cache whose batch, size or strides are new: their launches are those that
were prepared for others of the family."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tunefa.compile.contract import Launch
from tunefa.compile.launch.lengths import CacheSizes, ResizedCache, Shapes
from tunefa.compile.launch.resizable import ResizableLaunch, Resizing, Written
from tunefa.compile.launch.steps import Steps, workspace
from tunefa.runtime.choice import Chosen
from tunefa.runtime.decode_call import CacheOptions, CacheTensors
from tunefa.runtime.decode_plan import KernelCachePlan
from tunefa.runtime.growth import Followed, Growth
from tunefa.runtime.kernel_plan import Launches, all_heads_first, new_lse
from tunefa.runtime.resized import SHARED_CALLS, in_layout
from tunefa.spec.rounding import round_up

SCRATCH = 2
"""Tensors of memory for splits, which a call needs while it runs."""
Starts = list[tuple[ResizableLaunch, Written]]
"""The launches of a call, in their order, each with what it writes."""


@dataclass(frozen=True)
class CacheLaunches:
    """The launches of a config over a cache, for calls of all sizes of a family."""

    lengths: ResizedCache
    launches: tuple[ResizableLaunch, ...]
    """The launch that computes splits, and the one that combines them, if there is one."""

    @classmethod
    def of(
        cls, lengths: ResizedCache, launch: Launch, sizes: CacheSizes, tensors: int
    ) -> CacheLaunches | None:
        """Returns launches that do what a prepared one does, for calls with so many tensors; None
        where they would do anything else for the sizes that it was prepared for."""
        shapes, resizings = sized(lengths, sizes)
        if not isinstance(launch, Steps) or launch.scratch != _with_dtypes(shapes):
            return None
        if len(launch.launches) != len(resizings):
            return None
        found = [
            ResizableLaunch.of(each, tensors + SCRATCH, resizing, form)
            for each, resizing, form in zip(launch.launches, resizings, lengths.forms, strict=True)
        ]
        launches = tuple(each for each in found if each is not None)
        return cls(lengths, launches) if len(launches) == len(found) else None

    def written(self, sizes: CacheSizes) -> tuple[Shapes, Starts]:
        """Returns the shapes of the memory for splits, and the launches with what they write for a
        call of these sizes."""
        shapes, resizings = self.lengths(sizes)
        tensors, pairs = sizes.tensors, zip(self.launches, resizings, strict=True)
        return shapes, [(launch, launch.written(*each, tensors)) for launch, each in pairs]

    def bound(self, sizes: CacheSizes) -> Steps:
        """Returns launches that are prepared for these sizes, which start sooner."""
        shapes, resizings = sized(self.lengths, sizes)
        pairs = zip(self.launches, resizings, strict=True)
        steps = [launch.bound(resizing) for launch, resizing in pairs]
        return Steps([each for each in steps if each is not None], _with_dtypes(shapes))


def sized(lengths: ResizedCache, sizes: CacheSizes) -> tuple[Shapes, tuple[Resizing, ...]]:
    """Returns the shapes of the memory for splits, and what the launches get for these sizes."""
    shapes, found = lengths(sizes)
    return shapes, tuple(Resizing(*each, sizes.tensors) for each in found)


def _with_dtypes(shapes: Shapes) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    return tuple((shape, torch.float32) for shape in shapes)


class Owner(Protocol):
    """The family of a plan, as far as plans ask it."""

    @property
    def options(self) -> CacheOptions:
        """The options of all its calls."""

    @property
    def device(self) -> int:
        """The device on which they run."""

    @property
    def default_scale(self) -> float:
        """The scale of calls that give none."""

    @property
    def launches(self) -> CacheLaunches:
        """The launches for the default scale."""

    @property
    def growth(self) -> Growth:
        """The last new calls."""

    def explain(self, sizes: CacheSizes) -> Chosen:
        """Returns the choice for these sizes, with the reason."""

    def of_scale(
        self, scale: float, sizes: CacheSizes, tensors: Callable[[], Sequence[Tensor]]
    ) -> CacheLaunches:
        """Returns the launches for a scale; `tensors` returns a call's, with heads first."""


class ResizedCachePlan(Followed):
    """Runs calls of one key. The first ones start launches that calls of all sizes share; later
    ones have launches of their own, which start sooner."""

    __slots__ = (
        "_bytes",
        "_calls",
        "_is_capturing",
        "_is_like_q",
        "_own",
        "_owner",
        "_shape",
        "_sizes",
        "_starts",
    )  # fmt: skip
    device_bytes = 0

    def __init__(self, owner: Owner, sizes: CacheSizes) -> None:
        super().__init__(owner.growth)
        self._owner, self._sizes = owner, sizes
        shapes, self._starts = owner.launches.written(sizes)
        self._is_capturing = owner.launches.launches[0].driver.is_capturing
        batch, heads, rows, columns, *_ = sizes.tensors[3]
        # Kernels read 16 bytes at a time, and so each part begins at a multiple of 256.
        partial, rest = (
            4 * round_up(math.prod(shapes[0]), 64),
            4 * round_up(math.prod(shapes[1]), 64),
        )
        self._bytes = partial, partial + rest, partial + rest + 4 * batch * heads * rows
        """The ends of the parts of the memory: two for splits, and one for an unread lse."""
        self._is_like_q = sizes.tensors[0][3] == columns
        self._shape, _ = in_layout(owner.options.layout, sizes.tensors[3])
        self._calls = 0
        self._own: KernelCachePlan | None = None

    @property
    def chosen(self) -> Chosen:
        """The kernel and config that it runs, and why."""
        return self._owner.explain(self._sizes)

    def run(
        self, tensors: CacheTensors, scale: float | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse), with `out` in the call's layout, in `out` if given."""
        # A CUDA graph keeps the kernels of the launches that it captures, and so must they.
        if self._calls >= SHARED_CALLS or self._is_capturing():
            return self.own.run(tensors, scale, out)
        lse = new_lse(tensors[0], self._sizes.tensors[0][:3])
        return self._first(tensors, scale, out, lse), lse

    def output(self, tensors: CacheTensors, scale: float | None, out: Tensor | None) -> Tensor:
        """Runs a call; returns `out` alone."""
        if self._calls >= SHARED_CALLS or self._is_capturing():
            return self.own.output(tensors, scale, out)
        return self._first(tensors, scale, out, None)

    def _first(
        self, tensors: CacheTensors, scale: float | None, out: Tensor | None, lse: Tensor | None
    ) -> Tensor:
        self._calls += 1
        owner, starts, q = self._owner, self._starts, tensors[0]
        if out is None:
            is_like = self._is_like_q and q.is_contiguous()
            out = torch.empty_like(q) if is_like else q.new_empty(self._shape)
        if scale is not None and scale != owner.default_scale:
            _, starts = self._of_scale(scale, tensors, out, lse).written(self._sizes)
        if torch._C._cuda_getDevice() == owner.device:
            self._start(starts, tensors, (out, lse))
        else:
            with torch.cuda.device(owner.device):
                self._start(starts, tensors, (out, lse))
        if self.then is not None:
            self.proceed()
        return out

    def _start(
        self, starts: Starts, tensors: CacheTensors, outputs: tuple[Tensor, Tensor | None]
    ) -> None:
        """Starts the kernels, on the current device."""
        (q, k, v, lengths, table, sinks, of_k, of_v), (out, lse) = tensors, outputs
        more: list[int] = []
        # Most calls have none of these.
        if not (table is None and sinks is None and of_k is None and of_v is None):
            given = table, sinks, of_k, of_v
            more = [each.data_ptr() for each in given if each is not None]
        partial, whole, size = self._bytes
        stream = starts[0][0].driver.current_stream(self._owner.device)
        space = workspace(size, stream, q)
        with space.lock:
            at = space.at_least(size, q)
            # An lse that the caller does not ask for is not read, and lies behind the other memory.
            of_lse = at + whole if lse is None else lse.data_ptr()
            addresses = (
                q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), of_lse,
                lengths.data_ptr(), *more, at, at + partial,
            )  # fmt: skip
            for launch, written in starts:
                launch.start(stream, written, addresses)

    def _of_scale(
        self, scale: float, tensors: CacheTensors, out: Tensor, lse: Tensor | None
    ) -> CacheLaunches:
        def given() -> Sequence[Tensor]:
            q, k, v, *others = tensors
            shape = self._sizes.tensors[0][:3]
            kept = q.new_empty(shape, dtype=torch.float32) if lse is None else lse
            found = q, k, v, out, kept, *[each for each in others if each is not None]
            return all_heads_first(found, self._owner.options.layout)

        return self._owner.of_scale(scale, self._sizes, given)

    @property
    def own(self) -> KernelCachePlan:
        """The plan that is prepared for these sizes; it is made when it is first asked for."""
        if self._own is None:
            owner, sizes = self._owner, self._sizes

            def prepare(tensors: Sequence[Tensor], scale: float) -> Launch:
                return owner.of_scale(scale, sizes, lambda: tensors).bound(sizes)

            launches = Launches(owner.device, owner.launches.bound(sizes), prepare)
            self._own = KernelCachePlan(self.chosen, owner.options, launches, rows_contiguous=True)
        return self._own
