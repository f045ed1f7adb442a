"""Inputs that normal tensors never show, and memory around them that no kernel may read.

Half of what goes wrong in attention kernels cannot be seen on normal inputs: a sum that loses
digits where V has one sign, a maximum that is not followed, a tail that is masked by a product with
0. Here each row of queries has one of several patterns of scores, and each KV head one of two
patterns of values, so that one launch shows all of them.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from tunefa.spec.workload import Workload

Kind = Literal["normal", "mixed", "hostile"]
"""The inputs of a check: normal ones; normal and hostile ones in different sequences; hostile."""
Role = Literal["normal", "hostile", "NaN"]
"""The inputs of one sequence. NaN fills packed sequences only, whose neighbours must not see it."""

SCORES = (
    "",
    "scores rise along the keys",
    "scores fall along the keys",
    "one key dominates",
    "scores rise slowly along the keys",
    "all scores are equal",
    "scores have outliers",
)
"""The patterns of rows of queries."""
VALUES = ("V is positive", "V has outliers")
"""The patterns of KV heads."""
STEEP, SLOW = 48.0, 8.0
"""Nats by which scores rise or fall over all keys. Three blocks of keys then differ by 16 nats, 23
powers of two, which is more than any RESCALE_THRESHOLD."""
DOMINANT = 24.0
"""Nats by which one key is above the others."""
_RUN = 16
"""Consecutive rows of a pattern in every second head: those of one warp of tensor-core tiles. In
the other heads the pattern changes from row to row."""
MARGIN = 64
"""Rows of NaN and Inf before and after each sequence of dense tensors, and around packed ones."""


def roles(workload: Workload, kind: Kind) -> list[Role]:
    """The role of each sequence of the workload."""
    names: dict[Kind, tuple[Role, ...]] = {
        "normal": ("normal",),
        "mixed": ("normal", "hostile"),
        "hostile": ("hostile",),
    }
    cycle = names[kind]
    if workload.varlen and kind != "normal":
        cycle = (cycle[0], "hostile", "NaN")
    return [cycle[i % len(cycle)] for i in range(workload.batch)]


def change(workload: Workload, made: tuple[Any, ...], kind: Kind) -> None:
    """Changes normal q, k and v, made by `tunefa.measure.check.tensors`, to inputs of that kind."""
    row = key = 0
    generator = torch.Generator(made[0].device).manual_seed(0)
    for i, role in enumerate(roles(workload, kind)):
        rows, keys = workload.lengths[i]
        if workload.varlen:
            q = made[0][row : row + rows].transpose(0, 1)
            k, v = (each[key : key + keys].transpose(0, 1) for each in made[1:3])
            row, key = row + rows, key + keys
        else:
            q, k, v = (each[i] for each in made[:3])
        if role == "NaN":
            for each in (q, k, v):
                each.copy_(torch.full_like(each, float("nan")))
        elif role == "hostile":
            change_sequence(q, k, v, generator)


def change_sequence(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> None:
    """Changes one sequence: q (heads, rows, head_dim), k and v (heads_kv, keys, head_dim).

    The keys have a component along one direction that grows with their number, and one key has one
    along an orthogonal one. A row of queries that has a part in these directions sees its scores
    grow, fall or peak.
    """
    dim, keys, device = q.shape[-1], k.shape[1], q.device
    slope = 1.0 - 2.0 * (torch.rand(dim, generator=generator, device=device) < 0.5).float()
    peak = slope * (1.0 - 2.0 * (torch.arange(dim, device=device) % 2))  # orthogonal to it
    position = torch.linspace(-1.0, 1.0, keys, device=device)
    wide_k = k.float() + 2.0 * position[:, None] * slope
    wide_k[:, keys // 3] += 4.0 * peak
    wide_k[..., 0] *= 4.0
    pattern = _patterns(q.shape[0], q.shape[1], device)
    per_nat = dim**-0.5  # of q, whose scores are multiplied by head_dim^-0.5
    along_slope = torch.tensor([0.0, STEEP, -STEEP, 0.0, SLOW, 0.0, 0.0], device=device)
    along_peak = torch.tensor([0.0, 0.0, 0.0, DOMINANT, 0.0, 0.0, 0.0], device=device)
    wide_q = q.float() + per_nat / 4.0 * along_slope[pattern][..., None] * slope
    wide_q += per_nat / 4.0 * along_peak[pattern][..., None] * peak
    wide_q[..., 0] *= torch.where(pattern == SCORES.index("scores have outliers"), 6.0, 1.0)
    wide_q.masked_fill_((pattern == SCORES.index("all scores are equal"))[..., None], 0.0)
    wide_v = v.float()
    wide_v[::2] = 0.5 + 0.5 * wide_v[::2].abs()
    wide_v[1::2, 5::37] *= 30.0
    for narrow, wide in ((q, wide_q), (k, wide_k), (v, wide_v)):
        narrow.copy_(wide.to(narrow.dtype))


def _patterns(heads: int, rows: int, device: torch.device) -> Tensor:
    """The number in SCORES of each row's pattern: (heads, rows)."""
    head = torch.arange(heads, device=device)[:, None]
    row = torch.arange(rows, device=device)
    return (torch.where(head % 2 == 0, row, row // _RUN) + head) % len(SCORES)


def described(workload: Workload, kind: Kind, sequence: int, head: int, row: int) -> str:
    """Says what is special about the inputs of a row of a head; empty if nothing is."""
    if roles(workload, kind)[sequence] == "normal":
        return ""
    device = torch.device("cpu")
    scores = SCORES[int(_patterns(workload.heads, row + 1, device)[head, row])]
    values = VALUES[head // workload.group % 2]
    return f"{scores} and {values}" if scores else values


# ------------------------------------------------------------------------------- the memory around


def surrounded(tensor: Tensor, is_input: bool) -> tuple[Tensor, Tensor]:
    """Recycle a copy of a tensor, and its whole memory, which is NaN around the copy.

    The tensor is q, k, v or out: (batch, heads, rows, head_dim), or packed (rows, heads, head_dim).
    Rows are added around each sequence, and a head behind the heads of each row. Around inputs,
    every second row is Inf; e4m3 has none.
    """
    dense = tensor.dim() == 4
    *batch, rows, heads, head_dim = (tensor.transpose(1, 2) if dense else tensor).shape
    shape = (*batch, rows + 2 * MARGIN, heads + 1, head_dim)
    memory = torch.full(shape, float("nan"), dtype=tensor.dtype, device=tensor.device)
    if is_input and tensor.dtype.itemsize > 1:
        memory[..., 1::2, :, :] = float("inf")
    inner = memory[..., MARGIN : MARGIN + rows, :heads, :]
    inner = inner.transpose(1, 2) if dense else inner
    return inner.copy_(tensor), memory


def surrounded_lse(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Recycle a copy of a logsumexp, contiguous as kernels expect it, and its whole memory."""
    memory = tensor.new_full((tensor.numel() + 2 * MARGIN,), float("nan"))
    return memory[MARGIN:-MARGIN].view(tensor.shape).copy_(tensor), memory


def checksum(memory: Tensor) -> Tensor:
    """The sum of the memory's bits as integers, on its device."""
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32}[memory.dtype.itemsize]
    return memory.view(integer).sum(dtype=torch.int64)
