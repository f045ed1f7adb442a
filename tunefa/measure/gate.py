"""The check that a kernel must pass before it is timed, and the interpreter's where none is timed.

A kernel runs on inputs with a reference of higher precision (`Probe`), twice: all rows must be
near it, both launches must write the same bits, and nothing beside the outputs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec
from tunefa.compile.workers import Workers
from tunefa.measure import check
from tunefa.measure.comparison import ACCURACY_MARGIN, TOLERANCE, Comparison, Expected, sequence_of
from tunefa.spec.target import Case
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # they import PyTorch, which takes seconds
    import torch
    from torch import Tensor

    from tunefa.measure.hostile import Kind

ROUNDING = {"bf16": 2e-3, "fp16": 2.5e-4, "fp32": 2e-6}
"""The least limit over all rows that a kernel is held to: half a unit in the last place of the
dtype; for fp32 the 2^-22 of a product made of three tf32 products, with some room for sums."""
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
    """What a kernel is launched on, as `check.tensors` makes them."""
    memories: tuple[Tensor, ...]
    """The memory of q, k, v, out and lse, with what surrounds them."""
    sums: tuple[Tensor, ...]
    """The checksums of the memory of q, k and v."""
    expected: Expected

    @classmethod
    def of(
        cls, shape: Workload, kind: Kind, device: str, dtype: torch.dtype | None = None
    ) -> Probe:
        """Makes inputs of that kind, and computes the reference in `dtype`, by default that of the
        gate."""
        from tunefa.measure import hostile

        made = list(check.tensors(shape, device, seed=0))
        hostile.change(shape, tuple(made), kind)
        whole = [hostile.surrounded(made[i], is_input=i < 3) for i in range(4)]
        whole.append(hostile.surrounded_lse(made[4]))
        made[:5] = [inner for inner, _ in whole]
        memories = tuple(memory for _, memory in whole)
        inputs = check.inputs(shape, tuple(made), shape.head_dim**-0.5)
        expected = Expected.of(shape, inputs, dtype or _dtype(shape))
        sums = tuple(hostile.checksum(memory) for memory in memories[:3])
        return cls(shape, kind, tuple(made), memories, sums, _in_roles(expected, kind))

    @property
    def bytes(self) -> int:
        """Bytes of device memory."""
        kept = (*self.memories, self.expected.out, *[self.expected.lse] * 3)
        return sum(each.numel() * each.element_size() for each in kept)

    def strayed(self) -> bool:
        """Whether something was written beside the outputs, which are filled with NaN again."""
        import torch

        from tunefa.measure import hostile

        for output in self.tensors[3:5]:
            output.fill_(float("nan"))
        kept = [each.isnan().all() for each in self.memories[3:]]
        for memory, total in zip(self.memories, self.sums, strict=False):
            kept.append(hostile.checksum(memory) == total)
        return not bool(torch.stack(kept).all())

    def judge(self) -> Comparison:
        """Compares the outputs, which are filled with NaN again."""
        found = self.expected.compare(*self.tensors[3:5])
        return replace(found, strayed=self.strayed())


def _dtype(shape: Workload) -> torch.dtype:
    """The dtype of the gate's reference."""
    import torch

    return torch.float64 if shape.dtype == "fp32" else torch.float32


def _in_roles(expected: Expected, kind: Kind) -> Expected:
    """Says which rows are judged, which of them are normal, and what is special about the rest."""
    import torch

    from tunefa.measure import hostile

    shape, lse = expected.workload, expected.lse
    of_sequence = hostile.roles(shape, kind)
    numbers = torch.tensor([("normal", "hostile", "NaN").index(each) for each in of_sequence])
    if shape.varlen:
        numbers = numbers.repeat_interleave(torch.tensor([rows for rows, _ in shape.lengths]))
        numbers = numbers.to(lse.device).expand(lse.shape)
    else:
        numbers = numbers.to(lse.device)[:, None, None].expand(lse.shape)

    def inputs_of(place: tuple[int, ...]) -> str:
        if not shape.varlen:
            return hostile.described(shape, kind, *place)
        head, row = place
        sequence, row = sequence_of(shape, row)
        return hostile.described(shape, kind, sequence, head, row)

    normal = numbers == 0 if "normal" in of_sequence else numbers < 2
    return replace(expected, judged=numbers < 2, normal=normal, inputs_of=inputs_of)


class Gate:
    """The check on the device.

    Over all rows with normal inputs, the error must be within twice that of PyTorch's
    scaled_dot_product_attention on such inputs, or within TOLERANCE where PyTorch has no such
    attention. Each row, of hostile inputs too, must be within what rounding explains
    (`Expected.of`).
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._limits: dict[Workload, float] = {}
        self._probes: dict[Workload, Probe] = {}

    def probe(self, shape: Workload) -> Probe:
        """Inputs of a small shape, normal and hostile ones in one launch; they are kept."""
        if shape not in self._probes:
            while self._probes and sum(x.bytes for x in self._probes.values()) > CACHED_BYTES:
                del self._probes[next(iter(self._probes))]
            self._probes[shape] = Probe.of(shape, "mixed", self._device)
        return self._probes[shape]

    def large_probe(self, shape: Workload, kind: Kind) -> Probe:
        """Inputs of a workload's own shape, which are not kept; nor are those of small shapes."""
        self._probes.clear()
        return Probe.of(shape, kind, self._device)

    def compare(self, launch: Callable[[], None], probe: Probe) -> Comparison:
        """Launches twice on the probe's tensors, and compares the outputs."""
        outputs = probe.tensors[3:5]
        for written in outputs:
            written.fill_(float("nan"))
        launch()
        first = [written.clone() for written in outputs]
        for written in outputs:
            written.fill_(float("nan"))
        launch()
        same = all(
            bool(((a == b) | (a.isnan() & b.isnan())).all())
            for a, b in zip(first, outputs, strict=True)
        )
        found = replace(probe.judge(), limit=self.limit(probe), repeatable=same)
        if found.strayed:  # what lies there now is not what the reference saw
            self._probes.pop(probe.shape, None)
        return found

    def limit(self, probe: Probe) -> float:
        """The largest relative error over all rows that passes; it is measured once a shape.

        PyTorch has no soft-cap and no e4m3: the limit is then the dtype's tolerance. Where all
        inputs are hostile, PyTorch's error says nothing of them, and rows alone are judged.
        """
        shape = probe.shape
        margin = ACCURACY_MARGIN[shape.accuracy]
        if probe.kind == "hostile":
            return math.inf
        if shape.softcap or shape.dtype == "e4m3":
            return TOLERANCE[shape.dtype] * margin
        if shape not in self._limits:
            from tunefa.measure import sdpa

            # Copies, of which PyTorch may read what lies behind them.
            q, k, v, out, *rest = (each.contiguous() for each in probe.tensors)
            sdpa.write(check.inputs(shape, (q, k, v, out, *rest), shape.head_dim**-0.5), out)
            self._limits[shape] = max(2.0 * probe.expected.error(out), ROUNDING[shape.dtype])
        return self._limits[shape] * margin


def kinds_of_finalists(workload: Workload) -> tuple[Kind, ...]:
    """The inputs that finalists are checked with on the workload's own shape.

    One launch shows all kinds where there are several sequences.
    """
    return ("mixed",) if workload.batch > 1 else ("hostile", "normal")


def in_interpreter(case: Case, config: Config) -> Comparison:
    """Runs the config in its language's interpreter, in a process of its own, against fp64.

    bf16 is checked as fp16: Triton's interpreter multiplies bf16 matrices as raw 16-bit integers,
    and only the rounding of P and out depends on which of the two dtypes a kernel has. Raises what
    `Workers.submit` says: TimeoutError, ProcessLost, TunefaError or TaskRaised.
    """
    shape = check.ragged(case.workload, config)
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
    scale = case.workload.head_dim**-0.5
    spec = LaunchSpec(case, config, scale, check.softcap(case.workload))
    languages.load(case.kernel.language).interpret(spec, probe.tensors)
    return probe.judge()
