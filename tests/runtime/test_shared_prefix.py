"""tunefa/runtime/shared_prefix.py: calls with `shared_prefix` on the CPU, where PyTorch computes
them, and what does not go with it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.cache_calls import BATCH, HEADS_KV, expected, in_pages, made
from tests.support.prefix_calls import Problem, tensors
from tests.support.prefix_calls import expected as expected_of_problem
from tunefa.errors import TunefaError
from tunefa.runtime import decode_call
from tunefa.runtime.decode_call import CacheCall, CacheOptions, CacheTensors
from tunefa.runtime.decode_plan import Decode

PROBLEMS = [
    Problem([70, 0, 133], 3, 9, group=2, head_dim=64, head_dim_v=64),
    Problem([200, 192], 3, 4, page_size=64, seqlen_q=3, dtype="bf16", sinks=True),
    Problem([0, 1], 1, 2),
]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_result_is_attention_by_its_definition(problem: Problem) -> None:
    given = tensors(problem)
    right, right_lse = expected_of_problem(problem, given)
    out, lse = tunefa.decode_attention(**given, shared_prefix=True, return_lse=True)
    torch.testing.assert_close(out.double(), right, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse.double(), right_lse, atol=2e-3, rtol=1e-3)


def test_the_output_may_be_given() -> None:
    given = tensors(PROBLEMS[0])
    out = torch.full_like(given["q"], math.nan)
    assert tunefa.decode_attention(**given, shared_prefix=True, out=out) is out
    assert torch.equal(out, tunefa.decode_attention(**given))


def test_new_keys_are_written_first() -> None:
    given = made(seqlen_q=1)
    given["seqlens"] = torch.tensor([30, 7, 0], dtype=torch.int32)
    new = torch.randn(2, BATCH, 1, HEADS_KV, 16).double()
    call = in_pages({**given, "seqlens": given["seqlens"] + 1}, 4)
    call["seqlens"] = given["seqlens"]
    found = tunefa.decode_attention(**call, k=new[0], v=new[1], shared_prefix=True)
    for sequence, keys in enumerate(given["seqlens"].tolist()):
        given["k_cache"][sequence, keys], given["v_cache"][sequence, keys] = new[:, sequence, 0]
    right = expected({**given, "seqlens": given["seqlens"] + 1})[0]
    torch.testing.assert_close(found, right)


def test_it_compiles_without_graph_breaks() -> None:
    given = in_pages(made(), 4)

    def step(q: Tensor, **more: Any) -> Tensor:
        found: Tensor = tunefa.decode_attention(q * 2, **more, shared_prefix=True)
        return found + 1

    compiled: Any = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**given), step(**given))
    seen: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        seen.extend(node for node in graph.graph.nodes if "decode_attention" in str(node.target))
        return graph.forward

    torch.compile(step, fullgraph=True, backend=backend)(**given)
    assert len(seen) == 1 and True in seen[0].args, "the graph's op has the argument"


def test_fake_tensors_have_shapes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    real = tensors(PROBLEMS[0])
    with FakeTensorMode() as mode:
        fake: dict[str, Any] = {name: mode.from_tensor(x) for name, x in real.items()}
        out, lse = tunefa.decode_attention(**fake, shared_prefix=True, return_lse=True)
    assert out.shape == (3, 1, 4, 64) and lse.shape == (3, 4, 1)


def test_calls_with_and_without_it_have_plans_of_their_own() -> None:
    given = tensors(PROBLEMS[0])
    of_call = CacheTensors(*given.values())
    plain, shared = CacheOptions(), CacheOptions(shared_prefix=True)
    assert decode_call.key(of_call, plain, None) != decode_call.key(of_call, shared, None)
    asked = [
        Decode(CacheCall.of(of_call, options, None), None).asked() for options in (plain, shared)
    ]
    assert [each.prefix for each in asked] == [False, True]
    assert asked[1].prefix_keys == 4096


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"shared_prefix": 1}, "shared_prefix is 1: give True or False"),
    ({"shared_prefix": None}, "shared_prefix is None: give True or False"),
    ({"window": 5}, "shared_prefix with a window: the windows of sequences hide different parts"),
    ({"block_table": None}, "shared_prefix goes with a cache in pages"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_what_does_not_go_with_it_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = in_pages(made(), 4)
    if "block_table" in changes:
        given = dict(made())
    with pytest.raises(TunefaError) as caught:
        tunefa.decode_attention(**{**given, "shared_prefix": True, **changes})
    assert str(caught.value).startswith(message)


def test_a_cache_in_e4m3_is_refused_by_name() -> None:
    given: dict[str, Any] = tensors(PROBLEMS[0])
    for name in ("k_cache", "v_cache"):
        given[name] = given[name].to(torch.float8_e4m3fn)
    factors = torch.ones(3, 2)
    with pytest.raises(TunefaError, match="shared_prefix over a cache in e4m3: no kernel"):
        tunefa.decode_attention(**given, k_descale=factors, v_descale=factors, shared_prefix=True)


def test_latent_attention_is_refused_by_name() -> None:
    given: dict[str, Any] = tensors(Problem([30], 1, 2, head_dim=320, head_dim_v=320))
    given["v_cache"] = given["k_cache"][..., :256]
    with pytest.raises(TunefaError, match="shared_prefix with a head_dim of 320: kernels that"):
        tunefa.decode_attention(**given, shared_prefix=True)
