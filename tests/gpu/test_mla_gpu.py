"""Multi-head latent attention over a cache, on the device: random problems against fp64, and what
serving asks of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support import latent_calls
from tests.support.random_problems import check_random
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu
CASES = 160
KERNELS = [name for name in kernels.names() if name.startswith("attention_decode_mla")]
SHAPES = [(1, 1), (5, 1), (16, 1), (16, 4), (32, 2), (64, 1), (100, 1), (128, 1), (128, 2)]
"""Pairs of heads and seqlen_q: each is another binary."""
DIMS = [(576, 512), (576, 512), (576, 512), (320, 256), (288, 256)]
SCALE = 192**-0.5


def workloads() -> Iterator[Workload]:
    """Always the same ones."""
    chance = random.Random(0)
    for _ in range(CASES):
        heads, seqlen_q = chance.choice(SHAPES)
        head_dim, head_dim_v = chance.choice(DIMS)
        yield Workload(
            op="decode",
            batch=chance.choice([1, 2, 5, 33]),
            heads=heads,
            heads_kv=1,
            seqlen_q=seqlen_q,
            seqlen_k=chance.randint(seqlen_q, chance.choice([40, 700, 5000])),
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            dtype=chance.choice(["bf16", "bf16", "fp16"]),
            causal=chance.random() < 0.8,
            page_size=chance.choice([None, 16, 32, 64, 256]),
            varlen=chance.random() < 0.8,
            mla=True,
        )


@pytest.mark.parametrize("name", KERNELS)
def test_random_problems_are_right(name: str) -> None:
    """Each row against fp64, in two launches with the same bits."""
    check_random(kernels.load(name), workloads())


def call(heads: int, lengths: list[int], page_size: int | None, seed: int = 0) -> dict[str, Any]:
    """Arguments of `decode_attention`, with NaN behind the lengths, and room for 4,096 keys."""
    page = f"_page{page_size}" if page_size else ""
    text = f"decode_b{len(lengths)}_h{heads}_k4096_bf16{page}_mla"
    made = latent_calls.made(Workload.parse(text), lengths, seed)
    q, k, v, *_ = (each.to("cuda").transpose(1, 2) for each in made[:3])
    given = {"q": q, "k_cache": k, "v_cache": k[..., : v.shape[-1]], "seqlens": made[5].cuda()}
    return given | ({"block_table": made[6].cuda()} if page_size else {})


def run(given: dict[str, Any], **more: Any) -> Tensor:
    found: Tensor = tunefa.decode_attention(**given, scale=SCALE, **more)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.kernel in KERNELS, chosen
    return found


def right(given: dict[str, Any], heads: int, page_size: int | None) -> tuple[Tensor, Tensor]:
    lengths = given["seqlens"].tolist()
    page = f"_page{page_size}" if page_size else ""
    workload = Workload.parse(f"decode_b{len(lengths)}_h{heads}_k4096_bf16{page}_mla")
    q, k, v = (given[name].cpu().transpose(1, 2) for name in ("q", "k_cache", "v_cache"))
    out = torch.empty(*q.shape[:3], v.shape[3])
    more = [given[name].cpu() for name in ("seqlens", "block_table") if name in given]
    return latent_calls.right(
        workload, (q, k, v, out, torch.empty(q.shape[:3]), *more), lengths, SCALE
    )


@pytest.mark.parametrize("page_size", [None, 16, 64, 256])
@pytest.mark.parametrize("heads", [1, 16, 64, 128])
def test_ragged_lengths(heads: int, page_size: int | None) -> None:
    given = call(heads, [0, 1, 2000, 0, 33, 4096], page_size)
    out, lse = run(given, return_lse=True)
    found = out.cpu().transpose(1, 2), lse.cpu()
    assert latent_calls.worst_row(found, right(given, heads, page_size)) < 1e-2


@pytest.mark.parametrize("lengths", [[4096], [0, 1, 2000], [33, 2000] * 20, [300, 700] * 40])
@pytest.mark.parametrize("heads", [16, 100, 128])
def test_splits_may_follow_the_batch(heads: int, lengths: list[int]) -> None:
    given = call(heads, lengths, 64)
    out, lse = run(given, return_lse=True, batch_invariant=False)
    found = out.cpu().transpose(1, 2), lse.cpu()
    assert latent_calls.worst_row(found, right(given, heads, 64)) < 1e-2


@pytest.mark.parametrize("page_size", [None, 64])
@pytest.mark.parametrize("heads", [16, 128])
def test_a_sequence_has_the_same_bits_in_every_batch(heads: int, page_size: int | None) -> None:
    chance = random.Random(1)
    lengths = [4096, *(chance.randint(0, 4096) for _ in range(62)), 4095]
    given = call(heads, lengths, page_size)
    together = run(given)
    for chosen in (torch.arange(1), torch.arange(60, 64), torch.arange(63, -1, -1)):
        of = {"q", "seqlens", "block_table" if page_size else "k_cache"}
        some = {name: x[chosen.cuda()] if name in of else x for name, x in given.items()}
        some["v_cache"] = some["k_cache"][..., : given["v_cache"].shape[-1]]
        assert torch.equal(run(some), together[chosen.cuda()])


def test_a_graph_is_replayed_with_other_lengths_and_pages() -> None:
    given = call(16, [900, 17, 400, 1], 64)
    out = torch.empty(4, 1, 16, 512, device="cuda", dtype=torch.bfloat16)
    run(given, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(given, out=out)
    for seed, lengths in enumerate(([3, 800, 0, 64], [0, 0, 0, 4096]), 1):
        other = call(16, lengths, 64, seed)
        for name in ("q", "k_cache", "seqlens", "block_table"):
            given[name].copy_(other[name])
        graph.replay()
        wanted, _ = right(given, 16, 64)
        found = out.cpu().transpose(1, 2).double()
        torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)


def test_values_of_their_own_are_not_taken_for_columns_of_the_keys() -> None:
    given = call(16, [100, 7], None)
    given["v_cache"] = given["v_cache"].clone() * 2
    found = tunefa.decode_attention(**given, scale=SCALE)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.how == "pytorch", chosen
    wanted, _ = right(given, 16, None)
    torch.testing.assert_close(
        found.cpu().transpose(1, 2).double(), 2 * wanted, atol=4e-2, rtol=4e-2
    )


def test_every_config_that_is_compiled_is_right() -> None:
    """All that differs in the binary of attention_decode_mla_cuda_sm90, for few heads and many."""
    from tests.support.gpu_kernels import seen_target
    from tunefa.measure import launches
    from tunefa.measure.gate import Gate
    from tunefa.spec.target import Case

    kernel, gate = kernels.load("attention_decode_mla_cuda_sm90"), Gate("cuda")
    for text in ("decode_b5_h128_k3000_bf16_page64_varlen_mla", "decode_b3_h16_q4_k900_fp16_mla"):
        case = Case(kernel, Workload.parse(text), seen_target())
        if why := case.why_not():
            pytest.skip(why)
        probe, seen = gate.probe(case.workload, ()), set()
        for config in case.feasible().configs:
            binary = tuple(config.values())[:3]
            if binary not in seen:
                seen.add(binary)
                found = gate.compare(launches.launch(case, config, probe.tensors), probe, ())
                assert found.passed and found.repeatable, (config, found.reason)
        assert len(seen) > 2


def test_workloads_have_something_of_everything() -> None:
    every = list(workloads())
    assert len(every) == CASES and all(replace(each, batch=1).mla for each in every)
    for name in ("varlen", "causal"):
        assert {getattr(each, name) for each in every} == {True, False}
    assert {each.page_size for each in every} == {None, 16, 32, 64, 256}
