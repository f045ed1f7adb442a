"""The op `prefill`: attention of packed queries over a cache with pages. Its tensors, its inputs,
its reference, its limits.

The cache, its lengths and its block table are those of the op `decode`. The queries of all
sequences follow one another, (rows, heads, head_dim), and are the last ones of their sequences.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tunefa.compile.contract import LaunchSpec
from tunefa.measure import check
from tunefa.measure.comparison import Expected, sequence_of
from tunefa.measure.ops import decode
from tunefa.spec.target import Case
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # they import PyTorch, which takes seconds
    import torch
    from torch import Tensor

    from tunefa.measure.hostile import Kind

OUTPUTS = slice(3, 5)
"""The output and the logsumexp; q and the cache are before them, and what a kernel reads beside
them is behind: seqlens_k, the block table, cu_seqlens_q, and what `decode` has behind the table."""
NAMES = ("out", "lse")


def tensors(workload: Workload, device: str, seed: int | None = None) -> tuple[Any, ...]:
    """Returns fresh (q, k, v, out, lse, seqlens_k, block_table, cu_seqlens_q, ...) on `device`:
    normal inputs, and outputs full of NaN.

    q is (rows, heads, head_dim), out (rows, heads, head_dim_v), lse (heads, rows), cu_seqlens_q
    (batch + 1,) in int32. All others are those of `decode.tensors`.
    """
    import torch

    of_cache = replace(workload, op="decode", seqlen_q=1, window_left=None, window_right=None)
    small_q, k, v, _, _, seqlens, table, *more = decode.tensors(of_cache, device, seed)
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed + 1)  # other numbers than those of the cache
    lengths = [rows for rows, _ in workload.lengths]
    shape = (sum(lengths), workload.heads)
    q = torch.randn(
        (*shape, workload.head_dim), generator=generator, device=device, dtype=small_q.dtype
    )
    out = torch.full((*shape, workload.head_dim_v), math.nan, device=device, dtype=q.dtype)
    lse = torch.full(shape[::-1], math.nan, device=device)
    cu_seqlens = torch.tensor([0, *accumulate(lengths)], device=device, dtype=torch.int32)
    return q, k, v, out, lse, seqlens, table, cu_seqlens, *more


def ragged(workload: Workload, config: Config) -> Workload:
    """Returns a small workload of the same kind, see `check.ragged`: five sequences of different
    lengths."""
    return replace(check.ragged(workload, config), batch=5, varlen=True)


def launch_spec(case: Case, config: Config) -> LaunchSpec:
    """The scale is that of scaled dot-product attention, head_dim^-0.5."""
    return decode.launch_spec(case, config)


def kinds_of_finalists(workload: Workload) -> tuple[Kind, ...]:
    """The inputs that finalists are checked with on the workload's own shape."""
    return decode.kinds_of_finalists(workload)


def inputs(
    workload: Workload, kind: Kind, device: str
) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """Returns the tensors, and the memory of q, the cache, out and lse with what surrounds them.

    Pages have the spare pages around them, and the slots behind a sequence's last key.
    """
    import torch

    from tunefa.measure import hostile

    made = list(tensors(workload, device, seed=0))
    for number, role in enumerate(_roles(workload, kind)):
        keys, values = decode.sequence_of(workload, made, number)
        if role == "hostile":
            generator = torch.Generator(made[0].device).manual_seed(number)
            q = made[0][_rows(workload, number)].transpose(0, 1)
            hostile.change_sequence(q, keys, values, generator)
        decode.write_sequence(workload, made, number, (keys, values))
    q, out = (hostile.surrounded(made[i], is_input=i == 0) for i in (0, 3))
    lse = hostile.surrounded_lse(made[4])
    made[0], made[3], made[4] = q[0], out[0], lse[0]
    return tuple(made), (q[1], made[1], made[2], out[1], lse[1])


def _roles(workload: Workload, kind: Kind) -> list[Any]:
    """Returns the kind of inputs of each sequence. None is NaN: what lies beside keys is."""
    from tunefa.measure import hostile

    return list(hostile.roles(replace(workload, varlen=False), kind))


def _rows(workload: Workload, number: int) -> slice:
    """Returns the query rows of a sequence."""
    ends = [0, *accumulate(rows for rows, _ in workload.lengths)]
    return slice(*ends[number : number + 2])


def expected(workload: Workload, kind: Kind, made: tuple[Any, ...], dtype: torch.dtype) -> Expected:
    """Returns the reference, with the rows that are judged, which of them are normal, and what is
    special about the rest."""
    import torch

    from tunefa.measure import hostile

    found = []
    for number in range(workload.batch):
        q = made[0][_rows(workload, number)].transpose(0, 1)[None]
        of_sequence = decode.attention_of(workload, made, number, q, dtype)
        found.append([each[0] for each in of_sequence])
    out, lse, spread = (torch.cat(each, dim=1) for each in zip(*found, strict=True))
    made_of = Expected.from_reference(workload, (out, lse, spread), check.softcap(workload))
    # A sink may leave a row outputs below the smallest number of its dtype.
    limits = made_of.limits + decode.HALF_OF_LEAST[workload.dtype] * workload.head_dim_v**0.5
    roles = _roles(workload, kind)
    normal = torch.tensor([role == "normal" for role in roles])
    if not bool(normal.any()):
        normal = ~normal
    normal = normal.repeat_interleave(torch.tensor([rows for rows, _ in workload.lengths]))

    def inputs_of(place: tuple[int, ...]) -> str:
        head, row = place
        sequence, row = sequence_of(workload, row)
        return hostile.described(replace(workload, varlen=False), kind, sequence, head, row)

    normal = normal.to(lse.device).expand(lse.shape)
    return replace(made_of, limits=limits, normal=normal, inputs_of=inputs_of)


def limit(workload: Workload, kind: Kind, made: tuple[Any, ...], expected: Expected) -> float:
    """Returns the dtype's tolerance, as `decode.limit` does."""
    return decode.limit(workload, kind, made, expected)
