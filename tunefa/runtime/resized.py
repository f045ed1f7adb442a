"""Plans of new lengths of a family, in a few microseconds: the config is one that is remembered,
and its launch is one that was prepared for other lengths."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tunefa.compile.contract import Launch
from tunefa.compile.launch.lengths import Resized
from tunefa.compile.launch.resizable import AXES, ResizableLaunch, Resizing, Sizes
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.call import Tensors
from tunefa.runtime.cells import STEP, Lengths
from tunefa.runtime.choice import Chosen
from tunefa.runtime.family_call import FamilyCall, contiguous
from tunefa.runtime.family_facts import FamilyFacts
from tunefa.runtime.growth import Followed
from tunefa.runtime.kernel_plan import KernelPlan, Launches
from tunefa.spec.kernel import Kernel
from tunefa.spec.trial import Config
from tunefa.store.lookup import Choice

TABLE_BYTES = 2**20
"""Bytes of tables that a config keeps beside those of `tunefa.runtime.tables`, or one table."""
SHARED_CALLS = 16
"""The number of calls of one length that share a launch with other lengths. To prepare a launch
takes about as long as so many calls lose by sharing one; layers of a model each call with a length
once."""
TENSORS = 5
"""q, k, v, out and lse."""
Prepare = Callable[[Sequence[Tensor], float], Launch]
"""Prepares a launch for a scale."""


class Tables:
    """The tables of some lengths, and what the kernel changes in the config for these."""

    __slots__ = ("changes", "device_bytes", "places", "streams", "tensors")

    def __init__(self, changes: dict[str, Any], tensors: tuple[Tensor, ...]) -> None:
        self.changes, self.tensors = changes, tensors
        self.places = tuple((len(each), each.data_ptr()) for each in tensors)
        """The length and the address of each."""
        self.streams: set[int] = set()
        self.device_bytes = sum(each.untyped_storage().nbytes() for each in tensors)

    def meet(self, stream: int, device: int) -> None:
        """Tells PyTorch not to reuse the tables' memory before this stream has finished, once for
        each of the `streams`. It is the current one of the device."""
        for table in self.tensors:
            table.record_stream(torch.cuda.current_stream(device))
        self.streams.add(stream)


def in_layout(layout: str, sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shape and the strides of a dense tensor of these sizes in the layout of a
    call."""
    batch, heads, rows, columns, of_batch, of_head, of_row, step = sizes
    if layout == "bhsd":
        return (batch, heads, rows, columns), (of_batch, of_head, of_row, step)
    return (batch, rows, heads, columns), (of_batch, of_row, of_head, step)


def _kept() -> BoundedCache[Tables]:
    return BoundedCache(TABLE_BYTES, lambda each: 1024 + each.device_bytes)


@dataclass(frozen=True)
class Binary:
    """A binary with a launch for all lengths."""

    launch: ResizableLaunch
    prepare: Callable[[Chosen], Prepare]
    """Returns what prepares launches with a choice."""


@dataclass(eq=False)
class ResizedConfig:
    """A config of a family, with the launches and tables that were prepared for it."""

    config: Config
    """Before the kernel sets parameters for the lengths."""
    kernel: Kernel
    lengths: Resized
    binaries: dict[Hashable, Binary] = field(default_factory=dict)
    """By what the binary depends on."""
    _tables: BoundedCache[Tables] = field(default_factory=_kept)
    _allowed: BoundedCache[Tables] = field(default_factory=_kept)
    """The tables of configs that the kernel changes, which is for the cost model to allow: by the
    lengths' cell too."""

    def tables(self, asked: Lengths) -> Tables | None:
        """Returns what is kept for the lengths."""
        key = self.lengths.decides(*asked)
        found = self._tables.get(key)
        if found is None or not found.changes:
            return found
        return self._allowed.get((key, *cell(asked)))

    def keep(self, asked: Lengths, wanted: dict[str, Any], tables: Tables) -> None:
        """Keeps tables. `wanted` are the changes for these lengths before they are allowed."""
        key = self.lengths.decides(*asked)
        if wanted:
            self._allowed.add((key, *cell(asked)), tables)
            self._tables.add(key, Tables(wanted, ()))
        else:
            self._tables.add(key, tables)


def cell(asked: Lengths) -> tuple[int, int]:
    """Returns a number for each cell of lengths, see `tunefa.runtime.cells`, of one batch."""
    return -(-asked[1] // STEP), -(-asked[2] // STEP)


Known = tuple[Choice, ResizedConfig, Binary, Tables]
"""A choice for some lengths, before the kernel sets parameters for them, and what was prepared for
it. A plain tuple is made in half of the time of one with names."""


class ResizedPlan(Followed):
    """Runs calls of one key. The first ones start the launch that all lengths share; later ones
    have a launch of their own, which starts sooner."""

    __slots__ = (
        "_binary",
        "_calls",
        "_choice",
        "_facts",
        "_lengths",
        "_out",
        "_own",
        "_resizing",
        "_tables",
        "_written",
        "device_bytes",
    )  # fmt: skip

    def __init__(self, facts: FamilyFacts, known: Known, call: FamilyCall) -> None:
        super().__init__(facts.growth)
        self._facts, self._lengths = facts, call.lengths
        self._choice, config, self._binary, tables = known
        self._resizing = resizing(config, tables, call, facts.layout)
        self._written = self._binary.launch.written(*self._resizing)
        self._out = in_layout(facts.layout, self._resizing.sizes[3])
        self._tables, self.device_bytes = tables, tables.device_bytes
        """The tables are those of other plans too."""
        self._calls = 0
        self._own: KernelPlan | None = None

    @property
    def chosen(self) -> Chosen:
        """The kernel and config that it runs, and why."""
        return self._facts.explain(self._choice, self._lengths, self._tables.changes)

    def run(self, tensors: Tensors, scale: float | None) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse), with `out` in the call's layout."""
        if self._needs_own(scale):
            return self.own.run(tensors, scale)
        out, lse = self._first(tensors, True)
        assert lse is not None
        return out, lse

    def output(self, tensors: Tensors, scale: float | None) -> Tensor:
        """Runs a call; returns `out` alone."""
        if self._needs_own(scale):
            return self.own.output(tensors, scale)
        return self._first(tensors, False)[0]

    def _needs_own(self, scale: float | None) -> bool:
        # A CUDA graph keeps what its launches point to, so it gets a launch of its own.
        if self._calls >= SHARED_CALLS or (
            scale is not None and scale != self._facts.default_scale
        ):
            return True
        is_capturing: bool = self._binary.launch.driver.is_capturing()
        return is_capturing

    def _first(self, tensors: Tensors, returns_lse: bool) -> tuple[Tensor, Tensor | None]:
        self._calls += 1
        device = self._facts.device
        if torch._C._cuda_getDevice() == device:
            made = self._start(tensors, returns_lse)
        else:
            with torch.cuda.device(device):
                made = self._start(tensors, returns_lse)
        if self.then is not None:
            self.proceed()
        return made

    def _start(self, tensors: Tensors, returns_lse: bool) -> tuple[Tensor, Tensor | None]:
        """Starts the launch on the current device, which is that of the plan."""
        facts, (q, k, v, _, _) = self._facts, tensors
        sizes = self._resizing.sizes
        batch, heads, rows, *_ = sizes[0]
        shape, steps = self._out
        if sizes[0][3] == sizes[3][3] and q.is_contiguous():
            steps = q.stride()  # as in torch.empty_like(q): any for an axis of length 1
        out = facts.new_tensor(shape, steps, q.dtype)
        if returns_lse:
            lse = facts.new_tensor((batch, heads, rows), (heads * rows, rows, 1), torch.float32)
            lse_at = lse.data_ptr()
        else:
            lse, lse_at = None, facts.unread_at(batch * heads * rows)
        launch = self._binary.launch
        stream = launch.driver.current_stream(facts.device)
        if stream not in self._tables.streams:
            self._tables.meet(stream, facts.device)
        at = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lse_at
        launch.start(stream, self._written, at)
        return out, lse

    @property
    def own(self) -> KernelPlan:
        """The plan that is prepared for these lengths; it is made when it is first asked for."""
        if self._own is None:
            self._own = self._made_own()
        return self._own

    def _made_own(self) -> KernelPlan:
        facts, binary, chosen = self._facts, self._binary, self.chosen
        launch = binary.launch.bound(self._resizing, self._tables.tensors)
        assert launch is not None and chosen.workload is not None
        launches = Launches(facts.device, launch, binary.prepare(chosen))
        sizes = self._resizing.sizes
        like_q = sizes[0][3] == sizes[3][3] and _is_contiguous(sizes[0], facts.layout)
        return KernelPlan(chosen, facts.layout, launches, rows_contiguous=True, out_like_q=like_q)


def resizing(config: ResizedConfig, tables: Tables, call: FamilyCall, layout: str) -> Resizing:
    """Returns what a launch gets for the lengths of a call."""
    q, k, v = call.sizes
    sizes = q, k, v, contiguous((*q[:3], v[3]), layout)
    ctas, numbers = config.lengths.numbers(*call.lengths, sizes, tables.places)
    return Resizing(ctas, numbers, sizes)


def _is_contiguous(sizes: Sizes, layout: str) -> bool:
    """Whether a tensor is contiguous: the stride of an axis of length 1 does not count."""
    expected = contiguous(sizes[:AXES], layout)
    pairs = zip(sizes[:AXES], sizes[AXES:], expected[AXES:], strict=True)
    return all(length == 1 or step == wanted for length, step, wanted in pairs)
