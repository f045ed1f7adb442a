"""tunefa as the attention of packed documents in torchtitan, beside fp64 and in its Llama."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import tunefa
from tests.support.exact_attention import exact

pytest.importorskip("torchtitan", reason="torchtitan is not installed")

import spmd_types as spmd
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.config import OverrideConfig, apply_overrides, override
from torchtitan.distributed.spmd_types import set_current_spmd_mesh
from torchtitan.distributed.utils import spmd_typecheck
from torchtitan.models.common.attention import (
    FlexAttention,
    VarlenAttention,
    VarlenMetadata,
    create_varlen_metadata_for_document,
)
from torchtitan.models.llama3 import model_registry

from tunefa.integrations import torchtitan as integration

NAME = "tunefa.integrations.torchtitan.attention"
POSITIONS = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2], [0, 0, 1, 2, 3, 4, 5, 6, 7]])
"""Positions of two rows with two documents each."""
DOCUMENTS = ((0, 0, 6), (0, 6, 9), (1, 0, 1), (1, 1, 9))
"""(row, start, end)."""
CLOSE: dict[str, Any] = {"rtol": 2e-2, "atol": 2e-2}
"""It is computed in bf16."""


def inputs() -> list[Tensor]:
    shapes = (2, 9, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16)
    return [torch.randn(shape).bfloat16().float().requires_grad_() for shape in shapes]


def right_of(given: list[Tensor], **mask: Any) -> tuple[Tensor, Tensor]:
    """(out, lse) of each document by itself; lse is (batch, seqlen, heads)."""
    q, k, v = given
    out, lse = torch.zeros_like(q).double(), q.new_zeros(q.shape[:3]).double()
    for row, *ends in DOCUMENTS:
        part = slice(*ends)
        one, one_lse = exact(*(x[row : row + 1, part] for x in (q, k, v)), **mask)
        out[row, part], lse[row, part] = one[0], one_lse[0].T
    return out, lse


def built(**config: Any) -> Any:
    return integration.attention(VarlenAttention.Config(**config)).build()


MASKS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"causal": True}),
    ({"window_size": (3, 0)}, {"causal": True, "sides": (3, 0)}),
    ({"window_size": (-1, -1)}, {}),
]


@pytest.mark.parametrize(("config", "mask"), MASKS, ids=str)
def test_it_is_attention_of_each_document(config: dict[str, Any], mask: dict[str, Any]) -> None:
    given, lengths = inputs(), create_varlen_metadata_for_document(POSITIONS)
    out = built(**config)(*given, attention_masks=lengths, scale=0.3, enable_gqa=True)
    right, _ = right_of(given, scale=0.3, **mask)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), right, **CLOSE)
    grads = torch.autograd.grad(out.cos().sum(), given)
    right_grads = torch.autograd.grad(right.cos().sum(), given)
    torch.testing.assert_close(grads, right_grads, **CLOSE)


def test_gpt_oss_gets_the_logsumexp_and_its_gradient() -> None:
    given, lengths = inputs(), create_varlen_metadata_for_document(POSITIONS)
    sinks = torch.randn(4, requires_grad=True)

    def with_sinks(out: Tensor, lse: Tensor) -> Tensor:
        return out * torch.sigmoid(lse - sinks)[..., None].to(out.dtype)

    out = built()(*given, attention_masks=lengths, out_transform=with_sinks)
    right = with_sinks(*right_of(given, causal=True))
    torch.testing.assert_close(out.double(), right, **CLOSE)
    grads = torch.autograd.grad(out.cos().sum(), (*given, sinks))
    right_grads = torch.autograd.grad(right.cos().sum(), (*given, sinks))
    torch.testing.assert_close(grads, right_grads, **CLOSE)


def overridden(model: Any) -> list[str]:
    return apply_overrides(OverrideConfig(imports=[NAME]), model)  # type: ignore[no-any-return]


def test_the_override_replaces_varlen_attention_of_a_llama() -> None:
    model = model_registry("debugmodel", attn_backend="varlen").model
    model.layers = model.layers[:2]
    model.layers[0].attention.inner_attention.window_size = (5, 0)
    assert len(overridden(model)) == 2
    configs = [layer.attention.inner_attention for layer in model.layers]
    assert {type(config) for config in configs} == {integration.TunefaAttention.Config}
    built_model = model.build()
    built_model.init_states()
    tokens = torch.randint(0, 2048, POSITIONS.shape)
    masks = built_model.get_attention_masks(positions=POSITIONS)
    assert isinstance(masks, VarlenMetadata)
    logits = built_model(tokens, positions=POSITIONS, attention_masks=masks)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.how == "pytorch"
    row = slice(1, 9)  # a document by itself has the logits that it has in the pack
    alone = POSITIONS[1:, row]
    again = built_model(
        tokens[1:, row], positions=alone, attention_masks=built_model.get_attention_masks(alone)
    )
    torch.testing.assert_close(logits[1:, row], again, **CLOSE)
    logits.float().logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in built_model.parameters())


def test_models_with_flex_attention_stay() -> None:
    model = model_registry("debugmodel", attn_backend="flex").model
    assert not overridden(model)
    assert isinstance(model.layers[0].attention.inner_attention, FlexAttention.Config)
    with pytest.raises(tunefa.TunefaError, match="attention_masks is a BlockMask"):
        mask = torch.nn.attention.flex_attention.create_block_mask(
            lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu"
        )
        built()(*inputs(), attention_masks=mask)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """The mesh of a rank among four, which do not communicate."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.distributed.destroy_process_group()


def test_results_are_sharded_as_queries_are(mesh: Any) -> None:
    given, lengths = inputs(), create_varlen_metadata_for_document(POSITIONS)
    seen = []

    def kept(out: Tensor, lse: Tensor) -> Tensor:
        seen.append(lse)
        return out

    with set_current_spmd_mesh(mesh), spmd_typecheck(local=False):
        for x in given:
            spmd.assert_type(x, {"dp": spmd.S(0), "tp": spmd.S(2)})
        for out_transform in (None, kept):
            out = built()(*given, attention_masks=lengths, out_transform=out_transform)
            assert spmd.get_partition_spec(out) == spmd.get_partition_spec(given[0])
            assert spmd.get_local_type(out) == spmd.get_local_type(given[0])
    assert spmd.get_partition_spec(seen[0]) == spmd.get_partition_spec(given[0])[:3]


def test_the_override_is_registered_once() -> None:
    with pytest.raises(ValueError, match="already registered"):
        override(target=VarlenAttention.Config)(integration.attention)
