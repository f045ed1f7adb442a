"""Plans of calls over a cache whose batch, size or strides are new: their launches are those that
were prepared for others of the family."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from tunefa.compile.contract import Launch
from tunefa.compile.launch.lengths import CacheSizes, ResizedCache, Shapes
from tunefa.compile.launch.prepared import Steps
from tunefa.compile.launch.resizable import AXES, ResizableLaunch, Resizing
from tunefa.runtime.choice import Chosen
from tunefa.runtime.decode_call import CacheOptions, CacheTensors
from tunefa.runtime.decode_plan import KernelCachePlan
from tunefa.runtime.kernel_plan import Launches, all_heads_first
from tunefa.runtime.resized import SHARED_CALLS

SCRATCH = 2
"""Tensors of memory for splits, which a call needs while it runs."""


@dataclass(frozen=True)
class CacheLaunches:
    """The launches of a config over a cache, for calls of all sizes of a family."""

    lengths: ResizedCache
    launches: tuple[ResizableLaunch, ...]

    @classmethod
    def of(
        cls, lengths: ResizedCache, launch: Launch, sizes: CacheSizes, tensors: int
    ) -> CacheLaunches | None:
        """Returns launches that do what a prepared one does, for calls with so many tensors; None
        where they would do anything else for the sizes that it was prepared for."""
        shapes, resizings = sized(lengths, sizes)
        if not isinstance(launch, Steps) or launch.scratch != _with_dtypes(shapes):
            return None
        found = [
            ResizableLaunch.of(each, tensors + SCRATCH, resizing, form)
            for each, resizing, form in zip(launch.launches, resizings, lengths.forms, strict=True)
        ]
        made = tuple(each for each in found if each is not None)
        return cls(lengths, made) if len(made) == len(found) else None

    def bound(self, sizes: CacheSizes) -> Steps:
        """Returns launches that are prepared for these sizes, which start sooner."""
        shapes, resizings = sized(self.lengths, sizes)
        pairs = zip(self.launches, resizings, strict=True)
        steps = [launch.bound(resizing) for launch, resizing in pairs]
        return Steps([each for each in steps if each is not None], _with_dtypes(shapes))


def sized(lengths: ResizedCache, sizes: CacheSizes) -> tuple[Shapes, tuple[Resizing, ...]]:
    """Returns the shapes of the memory for splits, and what the launches get for these sizes."""
    shapes, launches = lengths(sizes)
    return shapes, tuple([Resizing(*each, sizes.tensors) for each in launches])


def _with_dtypes(shapes: Shapes) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    return tuple((shape, torch.float32) for shape in shapes)


class Owner(Protocol):
    """The family of a plan, as far as plans ask it."""

    @property
    def options(self) -> CacheOptions:
        """The options of all its calls."""

    @property
    def device(self) -> int:
        """Where they run."""

    @property
    def default_scale(self) -> float:
        """The scale of calls that give none."""

    @property
    def launches(self) -> CacheLaunches:
        """The launches for the default scale."""

    def explain(self, sizes: CacheSizes) -> Chosen:
        """Returns the choice for these sizes, with the reason."""

    def of_scale(
        self, scale: float, sizes: CacheSizes, tensors: Callable[[], Sequence[Tensor]]
    ) -> CacheLaunches:
        """Returns the launches for a scale; `tensors` returns a call's, with heads first."""


class ResizedCachePlan:
    """Runs calls of one key. The first ones start launches that calls of all sizes share; later
    ones have launches of their own, which start sooner."""

    __slots__ = ("_calls", "_elements", "_own", "_owner", "_resizings", "_shape", "_sizes")
    device_bytes = 0

    def __init__(self, owner: Owner, sizes: CacheSizes) -> None:
        self._owner, self._sizes = owner, sizes
        (partial, ends), self._resizings = sized(owner.launches.lengths, sizes)
        self._elements = math.prod(partial), math.prod(ends)
        batch, heads, rows, columns = sizes.tensors[3][:AXES]
        of_rows = (heads, rows) if owner.options.layout == "bhsd" else (rows, heads)
        self._shape = batch, *of_rows, columns
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
        owner = self._owner
        if self._calls >= SHARED_CALLS or owner.launches.launches[0].driver.is_capturing():
            # A CUDA graph keeps the kernels of the launches that it captures, and so must they.
            return self.own.run(tensors, scale, out)
        self._calls += 1
        q, k, v, *others = tensors
        if out is None:
            out = q.new_empty(self._shape)
        lse = q.new_empty(self._sizes.tensors[0][:3], dtype=torch.float32)
        given = q, k, v, out, lse, *[each for each in others if each is not None]
        launches = owner.launches
        if scale is not None and scale != owner.default_scale:
            prepare_with = partial(all_heads_first, given, owner.options.layout)
            launches = owner.of_scale(scale, self._sizes, prepare_with)
        if torch._C._cuda_getDevice() == owner.device:
            self._start(launches, given)
        else:
            with torch.cuda.device(owner.device):
                self._start(launches, given)
        return out, lse

    def _start(self, launches: CacheLaunches, given: Sequence[Tensor]) -> None:
        partial, ends = self._elements
        scratch = given[0].new_empty(partial + ends, dtype=torch.float32)
        at = scratch.data_ptr()
        addresses = [*map(Tensor.data_ptr, given), at, at + 4 * partial]
        for launch, resizing in zip(launches.launches, self._resizings, strict=True):
            launch(resizing, addresses)

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
