"""The check of FlexAttention's results for a choice of options.

Some heads are computed in fp64 from the definition: the graphs of the user's functions and the
blocks of the mask. There an error may be at most twice that of PyTorch's own options. All other
rows are compared with the result of PyTorch's own options.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.integrations.flex_calls import FlexCall
from tunefa.integrations.flex_traced import Outputs, Run
from tunefa.measure.comparison import TOLERANCE
from tunefa.runtime.argument_checks import DTYPES

FACTOR = 2.0
"""The largest error, as a multiple of the error of PyTorch's own options."""
ROW_FACTOR = 16.0
"""The limit of a row's error, as a multiple of the limit over all rows, for a row of usual size."""
_ROUNDINGS = 0.5
"""The least limit, as a multiple of the distance of numbers near 1 in the dtype: PyTorch's own
error may be lucky."""
_SANE = 8.0
"""The largest error of PyTorch's own options, as a multiple of the tolerance of tunefa's kernels:
gradients have several roundings more. Above it, the mask's blocks contradict its function."""
_CHUNK_BYTES = 2**28
"""Memory for the scores of some rows, in fp64; several such tensors are live at the same time."""
_LEAST_NORM = 1e-30


@dataclass(frozen=True)
class Judged:
    """The result of a check."""

    error: float
    reason: str = ""
    """The reason that the results are wrong; empty if they are right."""
    is_steady: bool = True
    """Whether a second launch has written the same bits."""


class Truth:
    """The results that PyTorch's own options give, and exact ones of some heads."""

    def __init__(self, call: FlexCall, untuned: Run) -> None:
        """Raises TunefaError where PyTorch's own result is not that of the functions."""
        self._names = call.results[:1] if call.op == "fwd" else call.results
        self._untuned = tuple(each.clone() for each in untuned()[: len(self._names)])
        q, k, _ = call.qkv
        corners = dict.fromkeys([(0, 0), (q.shape[0] - 1, k.shape[1] - 1)])
        self._group = q.shape[1] // k.shape[1]
        self._exact = {corner: exact(call, *corner) for corner in corners}
        own = self.error_of(self._untuned)
        sane = _SANE * TOLERANCE[DTYPES[q.dtype]]
        if not own <= sane:  # NaN, too
            raise TunefaError(
                f"PyTorch's own options give results that are off by {own:.1e} from the score and "
                f"mask function in fp64 (limit {sane:.1e}): are the block mask's blocks those of "
                f"its mask_mod?"
            )
        self.limit = max(FACTOR * own, _ROUNDINGS * torch.finfo(q.dtype).eps)

    def judge(self, run: Run) -> Judged:
        """Runs a choice of options twice, and compares its results."""
        first = tuple(each.clone() for each in run()[: len(self._names)])
        again = run()[: len(self._names)]
        error = self.error_of(first)
        steady = all(_same_bits(a, b) for a, b in zip(first, again, strict=True))
        if not steady:
            return Judged(error, "two launches differ in their results", False)
        if not error <= self.limit:
            return Judged(error, f"relative error {error:.1e} (limit {self.limit:.1e})")
        for name, mine, theirs in zip(self._names, first, self._untuned, strict=True):
            if why := _why_unlike(mine, theirs, 2 * self.limit):
                return Judged(error, f"{name}: {why}")
        return Judged(error)

    def error_of(self, results: Sequence[Tensor]) -> float:
        """Returns the largest relative error of a result, over the heads that are known exactly."""
        errors = []
        for (batch, head_kv), right in self._exact.items():
            for name, result, known in zip(self._names, results, right, strict=True):
                heads = self._group if name in ("out", "dq") else 1
                mine = result[batch, head_kv * heads : (head_kv + 1) * heads].double()
                errors.append((mine - known).norm() / known.norm().clamp_min(_LEAST_NORM))
        return float(torch.stack(errors).detach().max())


def exact(call: FlexCall, batch: int, head_kv: int) -> Outputs:
    """Returns exact results of the query heads of one KV head, in fp64: the output, (heads, rows,
    head_dim_v); or dq like it, and dk and dv, (1, keys, head_dim).
    """
    q, k, v = call.qkv
    group = q.shape[1] // k.shape[1]
    heads = slice(head_kv * group, (head_kv + 1) * group)
    rows = q[batch, heads].detach().double()
    keys, values = (x[batch, head_kv].detach().double() for x in (k, v))
    if call.op == "fwd":
        parts = [_attend(call, rows[:, part], keys, values, (batch, heads, part))
                 for part in _parts(rows, keys)]  # fmt: skip
        return (torch.cat(parts, dim=1),)
    grad = call.arguments[5][batch, heads].double()
    keys, values = keys.requires_grad_(), values.requires_grad_()
    dq, dk, dv = torch.empty_like(rows), torch.zeros_like(keys), torch.zeros_like(values)
    for part in _parts(rows, keys):
        own = rows[:, part].requires_grad_()
        with torch.enable_grad():
            out = _attend(call, own, keys, values, (batch, heads, part))
        found = torch.autograd.grad(out, (own, keys, values), grad[:, part])
        dq[:, part], dk, dv = found[0], dk + found[1], dv + found[2]
    return dq, dk[None], dv[None]


def _parts(rows: Tensor, keys: Tensor) -> Iterator[slice]:
    """Yields slices of query rows whose scores fit the memory of a chunk."""
    step = max(1, _CHUNK_BYTES // (8 * rows.shape[0] * keys.shape[0]))
    for start in range(0, rows.shape[1], step):
        yield slice(start, min(start + step, rows.shape[1]))


def _attend(
    call: FlexCall, q: Tensor, k: Tensor, v: Tensor, place: tuple[int, slice, slice]
) -> Tensor:
    """The output of some rows of some heads, (heads, rows, head_dim_v)."""
    batch, heads, rows = place
    index = [
        torch.tensor(batch, device=q.device, dtype=torch.int32),
        *(torch.arange(s.start, s.stop, device=q.device, dtype=torch.int32) for s in (heads, rows)),
        torch.arange(k.shape[0], device=q.device, dtype=torch.int32),
    ]
    of_score, of_mask = call.captured
    scores = _mapped(call.score, True, len(of_score))(q @ k.T * call.scale, *index, *of_score)
    seen = _mapped(call.mask, False, len(of_mask))(*index, *of_mask)
    full, partial = _blocks(call, batch, heads, rows, k.shape[0])
    seen = full | (partial & seen.expand(scores.shape))
    some = seen.any(dim=-1, keepdim=True)  # a row that sees no key is 0
    scores = scores.double().masked_fill(~seen, -torch.inf).masked_fill(~some, 0.0)
    out: Tensor = (scores.softmax(dim=-1) * some) @ v
    return out


def _mapped(function: Any, with_score: bool, captured: int) -> Any:
    """The function for all heads, rows and keys at once: PyTorch traced it for one score."""
    function = _batchable(function)
    for places in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None)):
        first = (0,) if with_score else ()
        function = torch.vmap(function, in_dims=(*first, *places, *[None] * captured))
    return function


def _batchable(function: Any) -> Any:
    """The graph with another operator for conversions: Inductor's own is computed one element after
    the other in vmap."""
    made = copy.deepcopy(function)
    for node in made.graph.nodes:
        if node.target is torch.ops.prims.convert_element_type.default:
            value, dtype = node.args
            node.target, node.args = torch.ops.aten._to_copy.default, (value,)
            node.kwargs = {"dtype": dtype}
    made.recompile()
    return made


def _blocks(
    call: FlexCall, batch: int, heads: slice, rows: slice, keys: int
) -> tuple[Tensor, Tensor]:
    """Whether each row and key is in a block without a mask, and in one with it: (heads, rows,
    keys) each."""
    _, _, count, places, full_count, full_places, *_ = call.block_mask
    rows_of_block, keys_of_block = call.block_size
    row_blocks = torch.arange(rows.start, rows.stop, device=count.device) // rows_of_block
    key_blocks = torch.arange(keys, device=count.device) // keys_of_block

    def among(number: Tensor | None, listed: Tensor | None, head: int) -> Tensor:
        made = torch.zeros(len(row_blocks), keys, dtype=torch.bool, device=count.device)
        if number is None or listed is None:
            return made
        at = batch % number.shape[0], head % number.shape[1]
        chosen, own = number[at][row_blocks], listed[at][row_blocks].long()
        blocks = made.new_zeros(len(row_blocks), int(key_blocks[-1]) + 1)
        is_listed = torch.arange(own.shape[1], device=count.device) < chosen[:, None]
        where, which = is_listed.nonzero(as_tuple=True)
        blocks[where, own[where, which]] = True
        return blocks[:, key_blocks]

    numbers = range(heads.start, heads.stop)
    full = torch.stack([among(full_count, full_places, head) for head in numbers])
    return full, torch.stack([among(count, places, head) for head in numbers])


def _why_unlike(mine: Tensor, theirs: Tensor, limit: float) -> str | None:
    """The reason that a result is not that of PyTorch's options, within a limit; None if it is."""
    off = (mine.float() - theirs.float()).norm(dim=-1)
    size = theirs.float().norm(dim=-1)
    overall = float(off.norm() / size.norm().clamp_min(_LEAST_NORM))
    if not overall <= limit:
        return f"it differs by {overall:.1e} from that of PyTorch's own options (limit {limit:.1e})"
    usual = size.square().mean().sqrt()
    worst = float((off / torch.maximum(size, usual).clamp_min(_LEAST_NORM)).max())
    if not worst <= ROW_FACTOR * limit:
        return (
            f"a row differs by {worst:.1e} from that of PyTorch's own options "
            f"(limit {ROW_FACTOR * limit:.1e})"
        )
    return None


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two results are equal; NaN equals NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
