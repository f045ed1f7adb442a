"""Plans of gradients with lengths that are new: the config is one that is remembered, and its
launches are those that were prepared for other lengths."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tunefa.compile.contract import Launch
from tunefa.compile.launch.lengths import GradientSizes, ResizedGradients
from tunefa.compile.launch.prepared import PreparedLaunch
from tunefa.compile.launch.resizable import ResizableLaunch, Resizing, Sizes, Written
from tunefa.compile.launch.steps import Layout, Scratch, Steps, workspace
from tunefa.measure.gradients import Gradients, Three
from tunefa.runtime.backward import KernelGradients, as_prepared, launched
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.call import Tensors
from tunefa.runtime.cells import Lengths
from tunefa.runtime.choice import Chosen
from tunefa.runtime.family_call import of_heads
from tunefa.runtime.family_facts import FamilyFacts
from tunefa.runtime.growth import Followed
from tunefa.runtime.kernel_plan import MAX_SCALES, Launches
from tunefa.runtime.resized import SHARED_CALLS, TABLE_BYTES, Tables
from tunefa.spec.kernel import Kernel
from tunefa.spec.trial import Config
from tunefa.store.lookup import Choice

TENSORS, GRADIENTS = 10, 3
"""q, k, v, out, lse, dout, dlse, dq, dk and dv; the last are gradients of the first."""
_NO_ADDRESSES = (0,) * GRADIENTS
"""They stand for gradients that are not yet there."""
Prepare = Callable[[Sequence[Tensor], float], Launch]
"""Prepares launches for a scale."""


Started = tuple[int, Sequence[tuple[ResizableLaunch, Written]], Layout]
"""The number of gradients that there must be before the first launch of a call, see `StepLaunches`;
the launches, in their order, with what they write; and the places of their memory."""


class Sized:
    """The arguments of a config's launches for a call: memory, and what follows its sizes."""

    __slots__ = ("layout", "resizings", "scratch")

    def __init__(self, lengths: ResizedGradients, asked: GradientSizes, tables: Tables) -> None:
        places = [address for _, address in tables.places]
        scratch, launches = lengths(asked, places)
        # Descriptors are of the call's tensors, or of memory with one axis.
        own = [(shape[0], 1) if len(shape) == 1 else () for shape, _ in scratch]
        sizes = *asked.tensors, *own
        self.scratch: Scratch = scratch
        self.layout = Layout(scratch)
        self.resizings = [Resizing(ctas, numbers, sizes) for ctas, numbers in launches]


@dataclass(frozen=True)
class StepLaunches:
    """The launches of a binary, for gradients of all lengths of a family."""

    launches: Sequence[ResizableLaunch]
    early: int
    """The number of gradients of dq, dk and dv that there must be before the first launch: those up
    to the last that it writes. Most write none, so that nothing is allocated before it."""

    @classmethod
    def of(
        cls, launch: Launch, lengths: ResizedGradients, sizes: GradientSizes
    ) -> StepLaunches | None:
        """Returns launches that do what a prepared one does; None where they would do anything else
        for the sizes that it was prepared for."""
        if not isinstance(launch, Steps):
            return None
        sized, forms = Sized(lengths, sizes, own_tables(launch)), lengths.forms
        if tuple(launch.scratch) != sized.scratch or len(launch.launches) != len(forms):
            return None
        count = TENSORS + len(sized.scratch)
        found: list[ResizableLaunch] = []
        for each, resizing, form in zip(launch.launches, sized.resizings, forms, strict=True):
            made = ResizableLaunch.of(each, count, resizing, form)
            if made is None:
                return None
            found.append(made)
        given = [each for each in found[0].tensors if each < TENSORS]
        return cls(found, max(0, max(given, default=0) + 1 - (TENSORS - GRADIENTS)))

    def written(self, sized: Sized) -> Started:
        """Returns the launches, with what each writes for the sizes of a call."""
        pairs = zip(self.launches, sized.resizings, strict=True)
        written = [(launch, launch.written(*resizing)) for launch, resizing in pairs]
        return self.early, written, sized.layout

    def bound(self, sized: Sized, tables: Sequence[Tensor]) -> Steps:
        """Returns launches that are prepared for these lengths, which start sooner."""
        made: list[PreparedLaunch] = []
        for launch, resizing in zip(self.launches, sized.resizings, strict=True):
            found = launch.bound(resizing, tables)
            assert found is not None, "the launch was compared with a prepared one"
            made.append(found)
        return Steps(made, sized.scratch)


def own_tables(launch: Steps) -> Tables:
    """Returns the tables that launches were prepared with."""
    return Tables({}, tuple(table for each in launch.launches for table in each.tables))


@dataclass(frozen=True)
class GradientBinary:
    """Binaries with launches for all lengths."""

    launches: StepLaunches
    """The launches for the default scale."""
    prepare: Callable[[Chosen], Prepare]
    """Returns what prepares launches with a choice."""
    scales: BoundedCache[StepLaunches] = field(default_factory=lambda: BoundedCache(MAX_SCALES))


@dataclass(eq=False)
class GradientConfig:
    """A config of a family, with the launches and tables that were prepared for it."""

    config: Config
    kernel: Kernel
    lengths: ResizedGradients
    binaries: dict[Hashable, GradientBinary] = field(default_factory=dict)
    """By what the binaries depend on."""
    tables: BoundedCache[Tables] = field(
        default_factory=lambda: BoundedCache(TABLE_BYTES, lambda each: 1024 + each.device_bytes)
    )
    """By what decides them."""


Known = tuple[Choice, ResizedGradients, GradientBinary, Tables]
"""A choice for some lengths, and what was prepared for it."""


class ResizedGradientPlan(Followed):
    """Computes gradients of one key. The first calls start launches that all lengths share; later
    ones have launches of their own, which start sooner."""

    __slots__ = (
        "_asked",
        "_calls",
        "_facts",
        "_is_capturing",
        "_is_checked",
        "_known",
        "_own",
        "_sized",
        "_sizes",
        "_written",
        "device_bytes",
    )  # fmt: skip

    def __init__(
        self, facts: FamilyFacts, known: Known, asked: Lengths, sizes: Sequence[Sizes]
    ) -> None:
        """`sizes` are those of q, k, v, out, lse, dout, dlse, dq, dk and dv."""
        super().__init__(facts.growth)
        self._facts, self._known, self._asked, self._sizes = facts, known, asked, sizes
        self.device_bytes = known[3].device_bytes
        self._sized = self._of_sizes(facts.default_scale)
        launches = known[2].launches
        self._written = launches.written(self._sized)
        self._is_capturing = launches.launches[0].driver.is_capturing
        self._calls = 0
        # The gradients of dense tensors have their strides, see `gradient_family.like`.
        pairs = zip(sizes[:GRADIENTS], sizes[-GRADIENTS:], strict=True)
        self._is_checked = all([own is of_grad for own, of_grad in pairs])
        self._own: KernelGradients | None = None

    @property
    def chosen(self) -> Chosen:
        """The kernel and config that it runs, and why."""
        return self._facts.explain(self._known[0], self._asked)

    def gradients(self, tensors: Tensors, given: Gradients, scale: float | None) -> Three:
        """Returns (dq, dk, dv), see `BackwardPlan.gradients`."""
        # A CUDA graph keeps what its launches point to, so it gets launches of its own.
        if self._calls >= SHARED_CALLS or self._is_capturing():
            return self.own.gradients(tensors, given, scale)
        self._calls += 1
        facts, started = self._facts, self._written
        if scale is not None and scale != facts.default_scale:
            started = self._of_scale(scale, tensors, given).written(self._of_sizes(scale))
        if torch._C._cuda_getDevice() == facts.device:
            grads = self._start(started, tensors, given)
        else:
            with torch.cuda.device(facts.device):
                grads = self._start(started, tensors, given)
        if not self._is_checked:
            self._check(grads)
            self._is_checked = True
        if self.then is not None:
            self.proceed()
        return grads

    def _start(self, started: Started, tensors: Tensors, given: Gradients) -> Three:
        """Starts all kernels, on the current device; returns (dq, dk, dv).

        Those that the first kernel does not write are allocated while it runs.
        """
        early, ((first, of_first), *others), layout = started
        (q, k, v, _, _), (out, lse, grad_out, dlse) = tensors, given
        inputs = q, k, v
        device, tables, size = self._facts.device, self._known[3], layout.bytes
        if dlse is None:  # its sizes are those that `launched` gives it
            dlse = self._facts.zero
        stream = first.driver.current_stream(device)
        if stream not in tables.streams:
            tables.meet(stream, device)
        grads = [*map(torch.empty_like, inputs[:early])]
        space = workspace(size, stream, q)
        with space.lock:
            before = (
                q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lse.data_ptr(),
                grad_out.data_ptr(), dlse.data_ptr(),
            )  # fmt: skip
            memory, none = layout.at(space.at_least(size, q)), _NO_ADDRESSES[early:]
            addresses = *before, *map(Tensor.data_ptr, grads), *none, *memory
            first.start(stream, of_first, addresses)
            grads += map(torch.empty_like, inputs[early:])
            addresses = *before, *map(Tensor.data_ptr, grads), *memory
            for launch, written in others:
                launch.start(stream, written, addresses)
        dq, dk, dv = grads
        return dq, dk, dv

    def _check(self, grads: Sequence[Tensor]) -> None:
        """Makes sure that PyTorch has given the gradients the strides that launches write by. With
        others they would be wrong, but still as large."""
        for grad, sizes in zip(grads, self._sizes[-len(grads) :], strict=True):
            assert of_heads(grad.shape, grad.stride(), self._facts.layout) == sizes

    def _of_sizes(self, scale: float) -> Sized:
        asked = GradientSizes(*self._asked, (*self._sizes,), scale)
        return Sized(self._known[1], asked, self._known[3])

    def _of_scale(self, scale: float, tensors: Tensors, given: Gradients) -> StepLaunches:
        """Returns the launches for a scale; they are prepared on a call's tensors."""

        def made() -> Sequence[Tensor]:
            inputs = tensors.q, tensors.k, tensors.v
            grads = [*map(torch.empty_like, inputs)]
            return as_prepared(launched(inputs, given, grads), self._facts.layout)

        return self._prepared(scale, made)

    def _prepared(self, scale: float, tensors: Callable[[], Sequence[Tensor]]) -> StepLaunches:
        """Returns the launches for a scale; `tensors` returns a call's, with heads first."""
        _, lengths, binary, _ = self._known
        found = binary.scales.get(scale)
        if found is None:
            launch = binary.prepare(self.chosen)(tensors(), scale)
            asked = GradientSizes(*self._asked, (*self._sizes,), scale)
            found = StepLaunches.of(launch, lengths, asked)
            assert found is not None, "it does what the launch for the default scale does"
            binary.scales.add(scale, found)
        return found

    @property
    def own(self) -> KernelGradients:
        """The plan that is prepared for these lengths; it is made when it is first asked for."""
        if self._own is None:
            facts, (_, _, binary, tables) = self._facts, self._known

            def prepare(tensors: Sequence[Tensor], scale: float) -> Launch:
                launches = self._prepared(scale, lambda: tensors)
                return launches.bound(self._of_sizes(scale), tables.tensors)

            usual = binary.launches.bound(self._sized, tables.tensors)
            launches = Launches(facts.device, usual, prepare)
            self._own = KernelGradients(self.chosen, facts.layout, launches, rows_contiguous=True)
        return self._own
