"""The op `bwd`: the gradients of attention. Its tensors, its inputs, its reference, its limits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tunefa.compile.contract import LaunchSpec
from tunefa.measure import check
from tunefa.measure.comparison import ACCURACY_MARGIN, TOLERANCE
from tunefa.measure.ops import fwd
from tunefa.spec.target import Case
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # they import PyTorch, which takes seconds
    import torch
    from torch import Tensor

    from tunefa.measure.attention_inputs import AttentionInputs
    from tunefa.measure.expected_gradients import ExpectedGradients
    from tunefa.measure.hostile import Kind

INPUTS = ("q", "k", "v", "out", "lse", "dout", "dlse")
OUTPUTS = slice(7, 10)
"""dq, dk and dv; the tensors of INPUTS are before them."""
NAMES = ("dq", "dk", "dv")
ROUNDING = {"bf16": 3e-3, "fp16": 4e-4, "fp32": 4e-6}
"""The least limit over all rows that a kernel is held to: the roundings of dS, or of P, and of the
result, each half a unit in the last place; for fp32 as for the op `fwd`, twice."""


def tensors(workload: Workload, device: str, seed: int | None = None) -> tuple[Any, ...]:
    """Returns fresh (q, k, v, out, lse, dout, dlse, dq, dk, dv, ...) on `device`.

    q, k, v, out, lse and what follows are as `check.tensors` makes them for the forward pass, with
    the output and the logsumexp of these inputs; dout is normal, and has the shape and strides of
    out. dlse is zero, with the shape of lse and strides of 0. The gradients are full of NaN and
    have the shapes and strides of q, k and v.
    """
    made = _without_outputs(workload, device, seed)
    attend(workload, (*made[:5], *made[OUTPUTS.stop :]))
    return made


def _without_outputs(workload: Workload, device: str, seed: int | None) -> tuple[Any, ...]:
    """Returns what `tensors` returns, where the output and the logsumexp are full of NaN."""
    import torch

    q, k, v, out, lse, *more = check.tensors(_forward(workload), device, seed)
    generator = torch.Generator(device)
    generator.manual_seed(generator.seed() if seed is None else seed + 1)
    dout = _empty_like(out)
    dout.copy_(torch.randn(out.shape, generator=generator, device=device, dtype=out.dtype))
    dlse = torch.zeros((), device=device).expand(lse.shape)
    grads = [_empty_like(each).fill_(math.nan) for each in (q, k, v)]
    return q, k, v, out, lse, dout, dlse, *grads, *more


def attend(workload: Workload, made: tuple[Any, ...]) -> None:
    """Writes the output and the logsumexp of (q, k, v, out, lse, ...) into the last two."""
    from tunefa.measure import reference

    inputs = check.inputs(_forward(workload), made, workload.head_dim**-0.5)
    out, lse = reference.attention(inputs)
    made[3].copy_(out)
    made[4].copy_(lse)


def _forward(workload: Workload) -> Workload:
    """The workload of the forward pass."""
    return replace(workload, op="fwd", deterministic=False)


def _empty_like(tensor: Tensor) -> Tensor:
    """A new tensor with the shape and the strides of a dense tensor."""
    import torch

    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def ragged(workload: Workload, config: Config) -> Workload:
    """Returns a small workload of the same kind, see `check.ragged`.

    Tiles of a backward kernel may be as long in queries as in keys, so both are large enough.
    """
    blocks = [int(value) for name, value in config.items() if name.startswith("BLOCK_")]
    largest = max([64, *blocks])
    return check.ragged(workload, {**config, "BLOCK_M": largest, "BLOCK_N": largest})


def launch_spec(case: Case, config: Config) -> LaunchSpec:
    """The scale is that of scaled dot-product attention, head_dim^-0.5."""
    return LaunchSpec(case, config, case.workload.head_dim**-0.5, check.softcap(case.workload))


def kinds_of_finalists(workload: Workload) -> tuple[Kind, ...]:
    """The inputs that finalists are checked with, see `fwd.kinds_of_finalists`."""
    return fwd.kinds_of_finalists(workload)


def inputs(
    workload: Workload, kind: Kind, device: str
) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """Returns the tensors, and the memory of inputs and outputs with what surrounds them.

    The gradient of the logsumexp is not zero here.
    """
    from tunefa.measure import hostile

    forward, made = _forward(workload), list(_without_outputs(workload, device, seed=0))
    hostile.change(forward, tuple(made), kind)
    attend(workload, (*made[:5], *made[OUTPUTS.stop :]))
    dlse = made[5].float().mean(dim=-1)
    made[6] = (dlse.transpose(0, 1) if workload.varlen else dlse).contiguous()
    whole = []
    for i, each in enumerate(made[: OUTPUTS.stop]):
        if i in (4, 6):
            whole.append(hostile.surrounded_lse(each))
        else:
            whole.append(hostile.surrounded(each, is_input=i < OUTPUTS.start))
    made[: OUTPUTS.stop] = [inner for inner, _ in whole]
    return tuple(made), tuple(memory for _, memory in whole)


def attention_inputs(workload: Workload, made: tuple[Any, ...]) -> AttentionInputs:
    """The inputs of the forward pass, from tensors that `tensors` made for the workload."""
    forward = (*made[:5], *made[OUTPUTS.stop :])
    return check.inputs(_forward(workload), forward, workload.head_dim**-0.5)


def expected(
    workload: Workload, kind: Kind, made: tuple[Any, ...], dtype: torch.dtype
) -> ExpectedGradients:
    """Returns the reference, with the rows that are judged, which of them are normal, and what is
    special about the rest."""
    return _reference(workload, kind, made, dtype)


def _reference(
    workload: Workload, kind: Kind, made: tuple[Any, ...], dtype: torch.dtype | None = None
) -> ExpectedGradients:
    """Does what `expected` does, by default in fp32."""
    import torch

    from tunefa.measure import hostile
    from tunefa.measure.expected_gradients import ExpectedGradients
    from tunefa.measure.gradients import Gradients

    asked = attention_inputs(workload, made)
    if dtype == torch.float64:
        asked = replace(asked, q=asked.q.double(), k=asked.k.double(), v=asked.v.double())
    out, lse, dout, dlse = made[3:7]
    found = ExpectedGradients.of(workload, asked, Gradients(out, lse, dout, dlse))
    of_sequence = hostile.roles(workload, kind)

    def spread(holds: list[bool]) -> tuple[Tensor, ...]:
        """One truth value of each sequence, for each row of dq, dk and dv."""
        truth = torch.tensor(holds, device=out.device)
        if not workload.varlen:
            return tuple(truth[:, None, None].expand(each.shape) for each in found.norms)
        lengths = torch.tensor(workload.lengths, device=out.device)
        return tuple(
            truth.repeat_interleave(lengths[:, min(i, 1)])[:, None].expand(each.shape)
            for i, each in enumerate(found.norms)
        )

    normal = [role == "normal" for role in of_sequence]
    judged = [role != "NaN" for role in of_sequence]

    def inputs_of(sequence: int, head_kv: int) -> str:
        return hostile.VALUES[head_kv % 2] if of_sequence[sequence] == "hostile" else ""

    return replace(
        found,
        judged=spread(judged),
        normal=spread(normal if any(normal) else judged),
        inputs_of=inputs_of,
    )


def limit(
    workload: Workload, kind: Kind, made: tuple[Any, ...], expected: ExpectedGradients
) -> float:
    """Returns twice the error of the gradients of PyTorch's scaled_dot_product_attention.

    PyTorch has no soft-cap and no packed sequences, and for rows that see no key no gradient: the
    limit is then the dtype's tolerance. Where all inputs are hostile, PyTorch's error says nothing
    of them, and rows alone are judged.
    """
    import torch

    from tunefa.measure import sdpa

    margin = ACCURACY_MARGIN[workload.accuracy]
    if kind == "hostile":
        return math.inf
    asked = attention_inputs(workload, made)
    if workload.softcap or workload.varlen or asked.first_row:
        return TOLERANCE[workload.dtype] * margin
    leaves = [made[i].contiguous().requires_grad_() for i in range(3)]
    with torch.enable_grad():
        out = sdpa.dense(replace(asked, q=leaves[0], k=leaves[1], v=leaves[2]))
        grads = torch.autograd.grad(out, leaves, made[5].contiguous())
    # PyTorch's gradients are of `out` alone: with a gradient of the logsumexp, those of the
    # reference are others. So their own reference is that without one.
    without = (*made[:6], made[6] * 0.0, *made[7:])
    error = _reference(workload, kind, without).error(*grads)
    return max(2.0 * error, ROUNDING[workload.dtype]) * margin
