"""tunefa/runtime/sharding.py: which placements of DTensors the ops take, and what they return.

The ranks are made up here, so collectives move no data; tests/runtime/test_ops_ranks.py has the
numbers of real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

import tunefa
from tunefa.runtime import sharding

RANKS = 8
BATCH, SEQLEN, HEAD_DIM = 8, 16, 8
R, BATCHES = Replicate(), Shard(0)


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    store: Any = FakeStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def sharded(
    mesh: DeviceMesh, heads: Sequence[int], placements: Sequence[Placement], layout: str = "bshd"
) -> list[Tensor]:
    made = []
    for count in heads:
        x = torch.randn(BATCH, SEQLEN, count, HEAD_DIM)
        x = x if layout == "bshd" else x.transpose(1, 2)
        made.append(distribute_tensor(x, mesh, list(placements)).requires_grad_())
    return made


def run(x: Sequence[Tensor], **options: Any) -> list[DTensor]:
    """out, lse, dq, dk and dv; both outputs have a gradient."""
    attention: Any = tunefa.flash_attention
    out, lse = attention(*x, causal=True, return_lse=True, **options)
    return [out, lse, *torch.autograd.grad(out.sum() + lse.sum(), list(x))]


def placements(made: Sequence[DTensor]) -> list[tuple[Placement, ...]]:
    return [tuple(each.placements) for each in made]


def on(rows: Sequence[Placement], lse: Sequence[Placement]) -> list[tuple[Placement, ...]]:
    """The placements that `run` returns, for those of rows and of lse."""
    return [tuple(rows), tuple(lse), *[tuple(rows)] * 3]


@pytest.mark.parametrize(
    ("given", "layout", "lse"),
    [
        (R, "bshd", R),
        (BATCHES, "bshd", BATCHES),
        (Shard(2), "bshd", Shard(1)),
        (Shard(1), "bhsd", Shard(1)),
        (BATCHES, "bhsd", BATCHES),
    ],
)
def test_batch_and_heads_stay_where_they_are(given: Placement, layout: str, lse: Placement) -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    made = run(sharded(mesh, (16, 8, 8), [given], layout), layout=layout)
    assert placements(made) == on([given], [lse])
    heads = 2 if layout == "bshd" else 1
    parts = [RANKS if given == Shard(axis) else 1 for axis in (0, heads)]
    local = made[0].to_local()
    assert (local.shape[0], local.shape[heads]) == (BATCH // parts[0], 16 // parts[1])
    assert made[1].to_local().shape == (BATCH // parts[0], 16 // parts[1], SEQLEN)


@pytest.mark.parametrize("given", [Shard(1), Shard(3), Partial()])
def test_other_placements_are_redistributed(given: Placement) -> None:
    """No rank computes with a part of a sequence or of head_dim, or with a part of a sum."""
    mesh = init_device_mesh("cpu", (RANKS,))
    shape = [BATCH, SEQLEN, 8, HEAD_DIM]
    if isinstance(given, Shard):
        shape[given.dim] //= RANKS
    x = [DTensor.from_local(torch.randn(shape), mesh, [given]).requires_grad_() for _ in "qkv"]
    out, lse, *grads = run(x)
    assert out.shape == (BATCH, SEQLEN, 8, HEAD_DIM) and lse.shape == (BATCH, 8, SEQLEN)
    assert out.placements[0] in (R, BATCHES, Shard(2))
    assert lse.placements[0] in (R, BATCHES, Shard(1))
    assert [grad.shape for grad in grads] == [out.shape] * 3


def test_a_group_of_heads_stays_whole() -> None:
    """Eight ranks cannot have a half of the four KV heads each."""
    mesh = init_device_mesh("cpu", (RANKS,))
    q = sharded(mesh, (16,), [Shard(2)])
    made = run([*q, *sharded(mesh, (4, 4), [R])])
    assert Shard(2) not in made[0].placements
    made = run(sharded(mesh, (48, 12, 12), [Shard(2)]))  # 6 query heads a rank, 2 KV heads or none
    assert Shard(2) not in made[0].placements


@pytest.mark.parametrize("heads", [(8, 4, 4), (48, 12, 12)])
def test_dimensions_of_a_mesh_combine(heads: tuple[int, ...]) -> None:
    mesh = init_device_mesh("cpu", (2, 4))
    for given, lse in (
        ((BATCHES, Shard(2)), (BATCHES, Shard(1))),
        ((R, Shard(2)), (R, Shard(1))),
        ((Shard(2), BATCHES), (Shard(1), BATCHES)),
    ):
        assert placements(run(sharded(mesh, heads, given))) == on(given, lse)
    both = run(sharded(mesh, heads, (Shard(2), Shard(2))))[0].placements
    assert list(both).count(Shard(2)) == 1, "both dimensions would cut groups"


def test_packed_sequences_are_sharded_by_heads() -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    starts = distribute_tensor(torch.tensor([0, 3, 12], dtype=torch.int32), mesh, [R])
    q, k, v = (
        distribute_tensor(torch.randn(12, n, 8), mesh, [Shard(1)]).requires_grad_()
        for n in (16, 8, 8)
    )
    out, lse = tunefa.flash_attention_varlen(q, k, v, starts, starts, 9, 9, return_lse=True)
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    assert isinstance(out, DTensor) and isinstance(lse, DTensor)
    assert out.placements == (Shard(1),) and lse.placements == (Shard(0),)
    assert all(each.placements == (Shard(1),) for each in grads if isinstance(each, DTensor))
    assert out.to_local().shape == (12, 2, 8) and lse.to_local().shape == (2, 12)


def test_plain_tensors_need_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    monkeypatch.delattr(propagator, "op_strategy_funcs")
    sharding.register.__wrapped__()
    q = torch.randn(1, 8, 2, 4, requires_grad=True)
    assert tunefa.flash_attention(q, q, q).requires_grad
