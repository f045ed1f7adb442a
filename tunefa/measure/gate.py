"""The check that a kernel must pass before it is timed, and the interpreter's where none is timed.

A kernel runs on inputs with a reference of higher precision (`Probe`), twice: all rows must be
near it, both launches must write the same bits, and nothing beside the outputs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tunefa.compile import languages
from tunefa.compile.workers import Workers
from tunefa.measure import ops
from tunefa.measure.comparison import Comparison
from tunefa.spec.target import Case
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # they import PyTorch, which takes seconds
    import torch
    from torch import Tensor

    from tunefa.measure.hostile import Kind

INTERPRETER_LIMIT_S = 120.0
"""The time limit of a check in the interpreter. It takes 2 s on two idle cores."""
INTERPRETER_MEMORY_BYTES = 4 * 2**30
"""The resident memory that a check in the interpreter may hold. PyTorch alone takes 0.4 GiB."""
CACHED_BYTES = 2**30
"""Device memory that a gate may keep for inputs and references of small shapes."""


@dataclass(frozen=True)
class Probe:
    """Inputs of one shape, outputs to be written, and what the reference wrote.

    The seed is fixed: a verdict can be repeated.
    """

    shape: Workload
    kind: Kind
    tensors: tuple[Any, ...]
    """The tensors that a kernel is launched on, as `check.tensors` makes them."""
    memories: tuple[Tensor, ...]
    """The memory of inputs and outputs, with what surrounds them."""
    sums: tuple[Tensor, ...]
    """The checksums of the memory of inputs."""
    expected: Any
    """The results of the reference, a `tunefa.measure.ops.Reference`."""

    @classmethod
    def of(
        cls,
        shape: Workload,
        kind: Kind,
        device: str,
        dtype: torch.dtype | None = None,
        unread: Sequence[str] = (),
    ) -> Probe:
        """Makes inputs of that kind, and computes the reference in `dtype`, by default that of the
        gate. The inputs named in `unread` are zeros."""
        from tunefa.measure import hostile

        op = ops.of(shape)
        tensors, memories = op.inputs(shape, kind, device)
        tensors = _with_zeros(tensors, [op.INPUTS.index(name) for name in unread])
        expected = op.expected(shape, kind, tensors, dtype or _dtype(shape))
        sums = tuple(hostile.checksum(memory) for memory in memories[: op.OUTPUTS.start])
        return cls(shape, kind, tensors, memories, sums, expected)

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The tensors that a kernel writes."""
        written: slice = ops.of(self.shape).OUTPUTS
        return self.tensors[written]

    @property
    def bytes(self) -> int:
        """Bytes of device memory."""
        own = sum(each.numel() * each.element_size() for each in self.memories)
        return own + int(self.expected.bytes)

    def strayed(self) -> bool:
        """Whether something was written beside the outputs, which are filled with NaN again."""
        import torch

        from tunefa.measure import hostile

        for output in self.outputs:
            output.fill_(float("nan"))
        kept = [each.isnan().all() for each in self.memories[len(self.sums) :]]
        for memory, total in zip(self.memories, self.sums, strict=False):
            kept.append(hostile.checksum(memory) == total)
        return not bool(torch.stack(kept).all())

    def judge(self) -> Comparison:
        """Compares the outputs, which are filled with NaN again."""
        found: Comparison = self.expected.compare(*self.outputs)
        return replace(found, strayed=self.strayed())


def _with_zeros(tensors: tuple[Any, ...], places: Sequence[int]) -> tuple[Any, ...]:
    """The tensors with zeros, which have strides of 0, in these places."""
    made = list(tensors)
    for place in places:
        made[place] = made[place].new_zeros(()).expand(made[place].shape)
    return tuple(made)


def _dtype(shape: Workload) -> torch.dtype:
    """The dtype of the gate's reference."""
    import torch

    return torch.float64 if shape.dtype == "fp32" else torch.float32


class Gate:
    """The check on the device.

    Over all rows with normal inputs, the error must be within twice that of PyTorch's own operator
    on such inputs, or within a tolerance where PyTorch has none. Each row, of hostile inputs too,
    must be within what rounding explains. `tunefa.measure.ops` has the limits of each op.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._limits: dict[tuple[Workload, Kind], float] = {}
        self._probes: dict[tuple[Workload, tuple[str, ...]], Probe] = {}

    def probe(self, shape: Workload, unread: tuple[str, ...] = ()) -> Probe:
        """Inputs of a small shape, normal and hostile ones in one launch; they are kept. Those
        named in `unread` are zeros."""
        key = shape, unread
        if key not in self._probes:
            while self._probes and sum(x.bytes for x in self._probes.values()) > CACHED_BYTES:
                del self._probes[next(iter(self._probes))]
            self._probes[key] = Probe.of(shape, "mixed", self._device, unread=unread)
        return self._probes[key]

    def large_probe(self, shape: Workload, kind: Kind, unread: tuple[str, ...] = ()) -> Probe:
        """Inputs of a workload's own shape, which are not kept; nor are those of small shapes."""
        self._probes.clear()
        return Probe.of(shape, kind, self._device, unread=unread)

    def compare(
        self, launch: Callable[[], None], probe: Probe, unordered: Sequence[str] = ()
    ) -> Comparison:
        """Launches twice on the probe's tensors, and compares the outputs.

        The outputs named in `unordered` are sums in no fixed order: two launches may differ there,
        within a share of what a row may be off.
        """
        outputs = probe.outputs
        for written in outputs:
            written.fill_(float("nan"))
        launch()
        first = [written.clone() for written in outputs]
        for written in outputs:
            written.fill_(float("nan"))
        launch()
        names = ops.of(probe.shape).NAMES
        same = all(
            probe.expected.agree(name, a, b) if name in unordered else _same_bits(a, b)
            for name, a, b in zip(names, first, outputs, strict=True)
        )
        found = replace(probe.judge(), limit=self.limit(probe), repeatable=same)
        if found.strayed:  # what lies there now is not what the reference saw
            self._probes.clear()
        return found

    def limit(self, probe: Probe) -> float:
        """The largest relative error over all rows that passes; it is measured once a shape and
        kind of inputs."""
        shape, kind = probe.shape, probe.kind
        if (shape, kind) not in self._limits:
            op = ops.of(shape)
            self._limits[shape, kind] = op.limit(shape, kind, probe.tensors, probe.expected)
        return self._limits[shape, kind]


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs are equal; NaN equals NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def in_interpreter(case: Case, config: Config) -> Comparison:
    """Runs the config in its language's interpreter, in a process of its own, against fp64.

    bf16 is checked as fp16: Triton's interpreter multiplies bf16 matrices as raw 16-bit integers,
    and only the rounding of P and out depends on which of the two dtypes a kernel has. Raises what
    `Workers.submit` says: TimeoutError, ProcessLost, TunefaError or TaskRaised.
    """
    shape = ops.of(case.workload).ragged(case.workload, config)
    if shape.dtype == "bf16":
        shape = replace(shape, dtype="fp16")
    task = (replace(case, workload=shape).names, dict(config))
    with Workers(1, INTERPRETER_MEMORY_BYTES) as process:
        return process.submit(_interpret, task, INTERPRETER_LIMIT_S).result()


def _interpret(names: tuple[str, str, str], config: Config) -> Comparison:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is imported, so before that
    import torch

    case = Case.from_names(*names)
    probe = Probe.of(case.workload, "mixed", "cpu", torch.float64)
    spec = ops.of(case.workload).launch_spec(case, config)
    languages.load(case.kernel.language).interpret(spec, probe.tensors)
    return probe.judge()
