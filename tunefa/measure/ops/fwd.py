"""The op `fwd`: attention. `tunefa.measure.check` has its tensors, `comparison` its limits, and
`hostile` its inputs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tunefa.compile.contract import LaunchSpec
from tunefa.measure import check
from tunefa.measure.comparison import ACCURACY_MARGIN, TOLERANCE, Expected, sequence_of
from tunefa.spec.target import Case
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # they import PyTorch, which takes seconds
    import torch
    from torch import Tensor

    from tunefa.measure.hostile import Kind

OUTPUTS = slice(3, 5)
"""The output and the logsumexp; q, k and v are before them."""
NAMES = ("out", "lse")
ROUNDING = {"bf16": 2e-3, "fp16": 2.5e-4, "fp32": 2e-6}
"""The least limit over all rows that a kernel is held to: half a unit in the last place of the
dtype; for fp32 the 2^-22 of a product made of three tf32 products, with some room for sums."""


def tensors(workload: Workload, device: str, seed: int | None = None) -> tuple[Any, ...]:
    """Returns (q, k, v, out, lse, ...), see `check.tensors`."""
    return check.tensors(workload, device, seed)


def ragged(workload: Workload, config: Config) -> Workload:
    """Returns a small workload of the same kind, see `check.ragged`."""
    return check.ragged(workload, config)


def launch_spec(case: Case, config: Config) -> LaunchSpec:
    """The scale is that of scaled dot-product attention, head_dim^-0.5."""
    return LaunchSpec(case, config, case.workload.head_dim**-0.5, check.softcap(case.workload))


def kinds_of_finalists(workload: Workload) -> tuple[Kind, ...]:
    """The inputs that finalists are checked with on the workload's own shape.

    One launch shows all kinds where there are several sequences.
    """
    return ("mixed",) if workload.batch > 1 else ("hostile", "normal")


def inputs(
    workload: Workload, kind: Kind, device: str
) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """Returns the tensors, and the memory of q, k, v, out and lse with what surrounds them."""
    from tunefa.measure import hostile

    made = list(check.tensors(workload, device, seed=0))
    hostile.change(workload, tuple(made), kind)
    whole = [hostile.surrounded(made[i], is_input=i < 3) for i in range(4)]
    whole.append(hostile.surrounded_lse(made[4]))
    made[:5] = [inner for inner, _ in whole]
    return tuple(made), tuple(memory for _, memory in whole)


def expected(workload: Workload, kind: Kind, made: tuple[Any, ...], dtype: torch.dtype) -> Expected:
    """Returns the reference, with the rows that are judged, which of them are normal, and what is
    special about the rest."""
    import torch

    from tunefa.measure import hostile

    found = Expected.of(workload, check.inputs(workload, made, workload.head_dim**-0.5), dtype)
    shape, lse = workload, found.lse
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
    return replace(found, judged=numbers < 2, normal=normal, inputs_of=inputs_of)


def limit(workload: Workload, kind: Kind, made: tuple[Any, ...], expected: Expected) -> float:
    """Returns twice the error of PyTorch's scaled_dot_product_attention on these inputs.

    PyTorch has no soft-cap and no e4m3: the limit is then the dtype's tolerance. Where all inputs
    are hostile, PyTorch's error says nothing of them, and rows alone are judged.
    """
    margin = ACCURACY_MARGIN[workload.accuracy]
    if kind == "hostile":
        return math.inf
    if workload.softcap or workload.dtype == "e4m3":
        return TOLERANCE[workload.dtype] * margin
    from tunefa.measure import sdpa

    # Copies, of which PyTorch may read what lies behind them.
    q, k, v, out, *rest = (each.contiguous() for each in made)
    scale = workload.head_dim**-0.5
    sdpa.write(check.inputs(workload, (q, k, v, out, *rest), scale), out)
    return max(2.0 * expected.error(out), ROUNDING[workload.dtype]) * margin
