"""Sharding rules of the ops, for `torch.distributed.tensor.DTensor`.

Attention of a part of the batch, or of some heads, needs nothing from the other ranks. So q, k, v
and all results may be replicated, sharded by the batch, or sharded by heads, on each dimension of a
device mesh. KV heads are sharded like query heads, and a group of query heads stays with its KV
head: the number of KV heads must be a multiple of the ranks. DTensor redistributes tensors that are
sharded otherwise (by seqlen or head_dim), of which the batch or the heads do not fit, or that are
partial sums. Packed sequences are sharded by heads only; their cu_seqlens are replicated DTensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from tunefa.runtime.call import LAYOUTS, PACKED
from tunefa.runtime.op_arguments import OUTPUTS_COUNT, split

_Placements = list[Placement | None]


class _Way(NamedTuple):
    """The placements of all tensors of a call on one dimension of a mesh."""

    rows: Placement
    """Placement of q, k, v, out and their gradients."""
    lse: Placement
    descale: Placement


@functools.cache
def register() -> None:
    """Registers the rules of both ops, once in a process.

    PyTorch's function takes the rules of one dimension of a mesh, and combines them. All dimensions
    together decide whether groups stay whole, and that it does not ask: so a filter is put around
    what it registers. Where PyTorch keeps that elsewhere, DTensor has no rules for attention, and
    says so when it is given one; plain tensors need none.
    """
    strategies = getattr(DTensor._op_dispatcher.sharding_propagator, "op_strategy_funcs", None)
    if strategies is None:
        return
    ops = torch.ops.tunefa
    rules: list[tuple[Any, Callable[..., Any], int]] = [
        (ops.flash_attention.default, _forward, 0),
        (ops.flash_attention_backward.default, _backward, OUTPUTS_COUNT),
    ]
    for op, rule, before in rules:
        register_sharding(op)(rule)
        if op in strategies:
            strategies[op] = functools.partial(_whole_groups, strategies[op], before)


def _heads_axis(layout: str) -> int:
    """The axis of heads in q, k, v and out."""
    return 1 if layout == PACKED else LAYOUTS[layout].strip("()").split(", ").index("heads")


def _ways(layout: str) -> list[_Way]:
    heads = Shard(_heads_axis(layout))
    if layout == PACKED:
        return [_Way(Replicate(), Replicate(), Replicate()), _Way(heads, Shard(0), Replicate())]
    return [
        _Way(Replicate(), Replicate(), Replicate()),
        _Way(Shard(0), Shard(0), Shard(0)),
        _Way(heads, Shard(1), Shard(1)),
    ]


def _forward(*arguments: Any) -> list[tuple[_Placements, _Placements]]:
    """Returns the placements of the results and those of the arguments, for each way."""
    ways = _ways(split(arguments)[1].layout)
    return [([way.rows, way.lse], _of_arguments(way, arguments)) for way in ways]


def _backward(*arguments: Any) -> list[tuple[_Placements, _Placements]]:
    _, grad_lse, _, _, *of_call = arguments
    made: list[tuple[_Placements, _Placements]] = []
    for way in _ways(split(of_call)[1].layout):
        outputs: _Placements = [way.rows, None if grad_lse is None else way.lse, way.rows, way.lse]
        made.append(([way.rows] * 3, outputs + _of_arguments(way, of_call)))
    return made


def _of_arguments(way: _Way, arguments: Sequence[Any]) -> _Placements:
    """The placements of the arguments of the forward op, None for what is no tensor."""
    of_tensors = [way.rows] * 3 + [Replicate()] * 2 + [way.descale] * 3
    of_options = [None] * (len(arguments) - len(of_tensors))
    pairs = zip([*of_tensors, *of_options], arguments, strict=True)
    return [None if argument is None else placement for placement, argument in pairs]


def _whole_groups(strategy_of: Callable[[Any], Any], before: int, op_schema: Any) -> Any:
    """Returns the combinations of an op's placements that leave no group of heads on two ranks.

    `before` arguments come before those of the forward op.
    """
    made = strategy_of(op_schema)
    arguments = op_schema.args_schema
    axis = _heads_axis(split(arguments[before:])[1].layout)
    k = arguments[before + 1]
    place = sum(each is not None for each in arguments[: before + 1])
    made.strategies = [
        each
        for each in made.strategies
        if k.shape[axis] % _shards(each.input_specs[place], axis) == 0
    ]
    return made


def _shards(spec: Any, axis: int) -> int:
    """The number of parts into which an axis is cut."""
    sizes = (
        spec.mesh.size(dimension)
        for dimension, placement in enumerate(spec.placements)
        if placement.is_shard(axis)
    )
    return math.prod(sizes)
