"""Tiles of the Gluon kernel that several query heads of a KV head share."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import tunefa
from tests.support.gpu_kernels import judge, seen_target
from tunefa.measure import check
from tunefa.measure.gate import Gate
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_gluon_sm90")
SM90 = Target.named("sm90")


def _is_served() -> bool:
    if not torch.cuda.is_available():
        return False
    return KERNEL.why_not(Workload.parse("q1"), seen_target().arch) is None


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _is_served(), reason="needs a Hopper GPU"),
]

RANDOM = 25
"""Random problems of each pack; a binary takes seconds to compile."""


@pytest.mark.parametrize("packed", [2, 4, 8])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_few_queries_of_long_sequences(packed: int, head_dim: int) -> None:
    for seqlen_q in (1, 2, 7, 8, 9, 33, 63):
        for mask in ("causal", "full"):
            heads = f"b2_h{4 * packed}_kv4"
            for dtype in ("bf16", "e4m3"):
                kind = f"d{head_dim}_{dtype}_{mask}"
                workload = Workload.parse(f"{heads}_q{seqlen_q}_k1000_{kind}")
                case = Case(KERNEL, workload, SM90)
                if case.why_not() is None:
                    config = case.default()
                    assert config["PACK_GQA"] == packed
                    judge(case, config, Gate("cuda"))


@pytest.mark.parametrize("packed", [2, 4, 8])
def test_random_problems_through_random_configs(packed: int) -> None:
    """Rules aside, a pack serves any lengths: several tiles, rows without a key, windows."""
    chance = random.Random(packed)
    for _ in range(RANDOM):
        mask = chance.choice(["causal", "full", "w9", "w70_a3", "a40", "full_w33"])
        cap = chance.choice(["", "", "_softcap"])
        dtype = chance.choice(["bf16", "fp16", "e4m3"])
        head_dim = chance.choice([64, 128] if dtype == "e4m3" else [64, 96, 128, 192, 256])
        kind = f"d{head_dim}_{dtype}_{mask}{cap}"
        heads = f"b{chance.randint(1, 3)}_h{3 * packed * chance.choice([1, 2])}_kv3"
        few = Case(KERNEL, Workload.parse(f"{heads}_q63_k4096_{kind}"), SM90)
        configs = few.feasible().configs
        config = chance.choice([each for each in configs if each["PACK_GQA"] == packed])
        for _ in range(3):
            seqlens = f"q{chance.randint(1, 300)}_k{chance.randint(1, 300)}"
            workload = Workload.parse(f"{heads}_{seqlens}_{kind}")
            judge(replace(few, workload=workload), config, Gate("cuda"))


def test_a_decoding_step_packs_its_heads_by_default() -> None:
    workload = Workload.parse("b4_h32_kv4_q1_k3000_d128_bf16")
    q, k, v = check.tensors(workload, "cuda", seed=0)[:3]
    out, lse = tunefa.flash_attention(q, k, v, causal=True, layout="bhsd", return_lse=True)
    found = check.compare(workload, (q, k, v, out, lse), 128**-0.5, torch.float32)
    assert found.passed, found.reason
