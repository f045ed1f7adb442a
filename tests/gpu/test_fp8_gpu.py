"""e4m3 on a CUDA device: `tunefa.flash_attention` and the configs of the kernels that serve it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.gpu_kernels import judge_random_configs, launched, served
from tunefa.measure import check
from tunefa.spec.workload import Workload

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

attention: Any = tunefa.flash_attention  # its overloads take no dictionaries
CUDA: Any = torch.cuda  # parts of it have no types
RANDOM = 25
"""Random shapes of each kind."""
CONFIGS = 8
"""Random configs of each workload; a binary takes seconds to compile."""


def call(workload: Workload, made: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """(out, lse) of a call on tensors of `check`, heads first, through the public function."""
    q, k, v, _, _, *descales = made
    given = dict(zip(("q_descale", "k_descale", "v_descale"), descales, strict=True))
    masks = {"causal": workload.causal, "window": workload.band}
    cap, sums = check.softcap(workload), {"standard": "precise", "fast": "fast"}
    given["accumulate"] = sums[workload.accuracy]
    out, lse = attention(q, k, v, layout="bhsd", return_lse=True, softcap=cap, **masks, **given)
    return out, lse


def judge(workload: Workload) -> None:
    """Raises AssertionError where a call is not near the reference in fp64."""
    made = check.tensors(workload, "cuda", seed=0)
    out, lse = call(workload, made)
    chosen = tunefa.last_choice()
    assert chosen is not None and (chosen.kernel != "pytorch") == bool(served(workload)), chosen
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    both = (*made[:3], out, lse, *made[5:])
    found = check.compare(workload, both, workload.head_dim**-0.5, torch.float64)
    assert found.passed, f"{found.reason}: {chosen}"


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize(
    "mask", ["full", "causal", "causal_wN", "full_wN", "full_wN_aN", "full_aN"]
)
def test_random_problems(head_dim: int, mask: str) -> None:
    chance = random.Random(f"{head_dim} {mask}")
    for _ in range(RANDOM):
        heads_kv, group = chance.randint(1, 4), chance.choice([1, 2, 3, 8])
        seqlens = [chance.randint(1, chance.choice([40, 400, 2000])) for _ in range(2)]
        kind = mask.replace("N", str(chance.randint(1, chance.choice([8, 100, 1000]))))
        kind += chance.choice(["", "_softcap"])
        heads = f"b{chance.randint(1, 3)}_h{heads_kv * group}_kv{heads_kv}"
        text = f"{heads}_q{seqlens[0]}_k{seqlens[1]}_d{head_dim}_e4m3_{kind}"
        judge(Workload.parse(text))


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_random_problems_with_fast_sums(head_dim: int, mask: str) -> None:
    chance = random.Random(f"fast {head_dim} {mask}")
    for _ in range(RANDOM):
        heads_kv, group = chance.randint(1, 4), chance.choice([1, 2, 3, 8])
        seqlens = [chance.randint(64, chance.choice([400, 2000])) for _ in range(2)]
        heads = f"b{chance.randint(1, 3)}_h{heads_kv * group}_kv{heads_kv}"
        judge(Workload.parse(f"{heads}_q{seqlens[0]}_k{seqlens[1]}_d{head_dim}_e4m3_{mask}_fast"))


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_sums_over_many_keys_lose_nothing(head_dim: int, mask: str) -> None:
    """All values are positive, so that sums grow and nothing that is cut off cancels: what rounds p
    then cancels instead. One sum over all keys would be 0.25 off."""
    workload = Workload.parse(f"h2_q512_k16384_d{head_dim}_e4m3_{mask}")
    serving = served(workload)
    if not serving:
        pytest.skip("no kernel of this GPU serves e4m3")
    for case in serving:
        made = check.tensors(workload, "cuda", seed=0)
        made[2].copy_((0.5 + torch.rand(made[2].shape, device="cuda")).to(made[2].dtype))
        launched(case, case.default(), made)
        found = check.compare(workload, made, head_dim**-0.5, torch.float32)
        assert found.error < 1e-2, f"{case.kernel.name}: {found.reason}"


@pytest.mark.parametrize(
    "text",
    [
        "q8192_d128",
        "q8192_d64_full",
        "q8192_d256",
        "q8192_d128_w999_a99",
        "q8192_d128_softcap",
        "q8192_d96_full",
        "q8192_d192",
        "h4_q1000_d32_dv128",
    ],
)
def test_random_configs_pass_the_gate(text: str) -> None:
    judge_random_configs(Workload.parse(f"{text}_e4m3"), CONFIGS, text)


def test_descales_that_are_not_given_are_one() -> None:
    workload = Workload.parse("b2_h4_kv2_q300_k400_d128_e4m3_full")
    q, k, v = check.tensors(workload, "cuda", seed=0)[:3]
    ones = torch.ones(2, 2, device="cuda")
    right = attention(q, k, v, layout="bhsd")
    for given in ({"q_descale": ones}, {"v_descale": ones[:1, :1].expand(2, 2)}):
        assert torch.equal(attention(q, k, v, layout="bhsd", **given), right)
    twice = attention(q, k, v, layout="bhsd", v_descale=2 * ones)
    assert torch.equal(twice, 2 * right)
    halves = {"q_descale": 2 * ones, "k_descale": ones / 2}
    assert torch.equal(attention(q, k, v, layout="bhsd", **halves), right)


def test_each_head_has_its_own_scales() -> None:
    workload = Workload.parse("b2_h4_kv2_q300_k400_d64_e4m3_causal")
    made = check.tensors(workload, "cuda", seed=0)
    out, _ = call(workload, made)
    for batch in range(2):
        for head in range(4):
            q = made[0][batch : batch + 1, head : head + 1]
            k, v = (x[batch : batch + 1, head // 2 : head // 2 + 1] for x in made[1:3])
            scales = (x[batch : batch + 1, head // 2 : head // 2 + 1] for x in made[5:])
            given = dict(zip(("q_descale", "k_descale", "v_descale"), scales, strict=True))
            one = attention(q, k, v, causal=True, layout="bhsd", **given)
            assert torch.equal(one, out[batch : batch + 1, head : head + 1])


def test_a_graph_that_captures_the_first_call_replays_with_other_inputs() -> None:
    workload = Workload.parse("b2_h4_kv2_q257_k301_d128_e4m3_causal")
    made = check.tensors(workload, "cuda", seed=0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = call(workload, made)
    for seed in range(1, 3):
        others = check.tensors(workload, "cuda", seed=seed)
        for into, other in zip((*made[:3], *made[5:]), (*others[:3], *others[5:]), strict=True):
            into.copy_(other)
        out.zero_()
        graph.replay()
        right, right_lse = call(workload, others)
        assert torch.equal(out, right) and torch.equal(lse, right_lse)


def test_streams_do_not_share_scratch_memory() -> None:
    workload = Workload.parse("b4_h8_q2048_k2048_d128_e4m3_full")
    sets = [check.tensors(workload, "cuda", seed=seed) for seed in range(3)]
    right = [call(workload, made)[0] for made in sets]
    torch.cuda.synchronize()
    streams: list[Any] = [CUDA.Stream() for _ in sets]
    outs: list[list[Tensor]] = [[] for _ in sets]
    for _ in range(5):
        for stream, made, found in zip(streams, sets, outs, strict=True):
            with torch.cuda.stream(stream):
                found.append(call(workload, made)[0])
    torch.cuda.synchronize()
    for found, expected in zip(outs, right, strict=True):
        assert all(torch.equal(out, expected) for out in found)


@pytest.mark.parametrize("kind", ["d72", "d256_softcap", "d80_w20"])
def test_what_no_kernel_serves_runs_in_pytorch(kind: str) -> None:
    judge(Workload.parse(f"b2_h4_kv2_q100_k130_{kind}_e4m3"))
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.kernel == "pytorch" and "no kernel" in chosen.why
