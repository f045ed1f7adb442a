"""Packed sequences on a CUDA device: `tunefa.flash_attention_varlen` and the kernel behind it."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

import pytest
import torch

import tunefa
from tests.support.gpu_kernels import judge, judge_random_configs, seen_target, served
from tests.support.packed_gpu_calls import Call, cumulated, is_kernels, random_lengths
from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec
from tunefa.measure import check, gradients, reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.comparison import TOLERANCE
from tunefa.measure.gate import Gate
from tunefa.runtime.call import Window
from tunefa.spec.workload import Workload

CUDA: Any = torch.cuda  # parts of it have no types


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.usefixtures("fresh"),
]


RANDOM = 25
"""Random calls of each kind."""


CONFIGS = 12
"""Random configs; a binary takes seconds to compile."""


@pytest.mark.parametrize(
    ("head_dim", "head_dim_v"), [(64, 64), (128, 128), (80, 80), (256, 256), (192, 128)]
)
@pytest.mark.parametrize("causal", [True, False])
def test_random_lengths(head_dim: int, head_dim_v: int, causal: bool) -> None:
    chance = random.Random(head_dim + causal)
    for _ in range(RANDOM):
        batch, longest = chance.choice([1, 2, 5, 40, 300]), chance.choice([3, 130, 1200])
        seqlens_q = random_lengths(chance, batch, longest)
        seqlens_k = random_lengths(chance, batch, longest) if chance.random() < 0.7 else seqlens_q
        heads_kv, group = chance.randint(1, 3), chance.choice([1, 2, 4])
        call = Call(
            seqlens_q,
            seqlens_k,
            heads_kv * group,
            heads_kv,
            head_dim,
            head_dim_v,
            chance.choice([torch.bfloat16, torch.float16]),
            causal,
            chance.choice([None, 1, 70, 400]) if causal else None,
        )
        out, lse = call.run()
        if call.rows and call.keys:
            is_kernels()
        call.judge(out, lse)


@pytest.mark.parametrize("window", [(0, 0), (70, 40), (None, 3), (100, None), (3, 400)])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_windows_of_two_sides_and_soft_caps(
    window: tuple[int | None, int | None], softcap: float | None
) -> None:
    chance = random.Random(str(window))
    for head_dim in (64, 128, 256):
        seqlens_q, seqlens_k = (random_lengths(chance, 12, 700) for _ in range(2))
        call = Call(
            seqlens_q,
            seqlens_k,
            head_dim=head_dim,
            head_dim_v=head_dim,
            causal=False,
            window=window,
            softcap=softcap,
        )
        out, lse = call.run()
        is_kernels()
        call.judge(out, lse)


def test_neither_neighbours_nor_padding_leak() -> None:
    seqlens = [70, 129, 1, 0, 200, 64, 128]
    for poisoned in range(len(seqlens) + 1):
        call = Call(seqlens, seqlens, room=100)
        clean = Call(seqlens, seqlens, room=100)
        rows = [0, *accumulate(seqlens), call.rows + call.room][poisoned : poisoned + 2]
        for name in ("q", "k", "v"):
            x = getattr(clean, name)
            getattr(call, name).copy_(x)[slice(*rows)] = float("nan")
        (out, lse), (right, right_lse) = call.run(), clean.run()
        is_kernels()
        others = torch.ones(call.rows, dtype=torch.bool, device="cuda")
        others[slice(*rows)] = False
        assert torch.equal(out[: call.rows][others], right[: call.rows][others])
        assert torch.equal(lse[:, : call.rows][:, others], right_lse[:, : call.rows][:, others])
        assert right[: call.rows].isfinite().all()


def test_rows_of_no_sequence_are_not_written() -> None:
    workload = Workload.parse("b5_h4_kv2_q300_d128_causal_varlen")
    cases = served(workload)
    if not cases:
        pytest.skip(f"no kernel serves packed sequences on {seen_target().arch.name}")
    q, k, v, out, lse, *_ = made = check.tensors(workload, "cuda")
    rows = q.shape[0] - 100
    starts = [0, 7, 7, 200, rows - 1, rows]
    made = (q, k, v, out, lse, *[torch.tensor(starts, device="cuda", dtype=torch.int32)] * 2)
    case = cases[0]
    language, config = languages.load(case.kernel.language), case.default()
    compiled = language.compile(case, config)
    launch = language.prepare(LaunchSpec(case, config, 0.1), compiled, made)
    launch(*made)
    assert out[rows:].isnan().all() and lse[:, rows:].isnan().all()
    assert out[:rows].isfinite().all() and lse[:, :rows].isfinite().all()


@pytest.mark.parametrize("batch", [300, 3000])
@pytest.mark.parametrize("causal", [True, False])
def test_many_short_sequences(batch: int, causal: bool) -> None:
    chance = random.Random(batch)
    seqlens = [chance.choice([0, 1, 7, 20, 64, 65]) for _ in range(batch)]
    call = Call(seqlens, seqlens, heads=8, causal=causal)
    out, lse = call.run()
    is_kernels()
    call.judge(out, lse)


def test_sequences_without_rows_or_keys() -> None:
    """Nothing is drawn; or there are tiles for some programs only, whose rows see no key."""
    empty = Call([0] * 40, [3] * 40, room=10)
    empty.run()
    torch.cuda.synchronize()
    for seqlens_q, seqlens_k in (([0, 9, 0], [4, 0, 4]), ([1] * 9 + [0], [0] * 9 + [1])):
        call = Call(seqlens_q, seqlens_k)
        out, lse = call.run()
        is_kernels()
        call.judge(out, lse)
        assert not out.any() and lse.isneginf().all()


def test_sections_of_heads() -> None:
    """Sections of one, some and all KV heads give the same bits: only the tiles' order differs."""
    workload = Workload.parse("b3_h24_kv6_q3000_d128_causal_varlen")
    cases = served(workload)
    if not cases:
        pytest.skip(f"no kernel serves packed sequences on {seen_target().arch.name}")
    case, gate, made = cases[0], Gate("cuda"), []
    for megabytes in (4, 8, 32):
        config = {**case.default(), "L2_SECTION_MB": megabytes}
        judge(case, config, gate)
        tensors = check.tensors(workload, "cuda", seed=0)
        language = languages.load(case.kernel.language)
        compiled = language.compile(case, config)
        language.prepare(LaunchSpec(case, config, 0.1), compiled, tensors)(*tensors)
        made.append(tensors[3])
    assert torch.equal(made[0], made[1]) and torch.equal(made[0], made[2])


def test_strided_and_scaled_calls() -> None:
    qkv = torch.randn(500, 3, 4, 64, device="cuda", dtype=torch.float16)
    q, k, v = qkv.unbind(1)
    cu_seqlens = cumulated([100, 250, 150])
    for scale in (None, 0.3, 0.05):
        out = tunefa.flash_attention_varlen(
            q, k, v, cu_seqlens, cu_seqlens, 250, 250, causal=True, scale=scale
        )
        is_kernels()
        inputs = AttentionInputs(q, k, v, True, scale or 0.125, cu_seqlens=(cu_seqlens, cu_seqlens))
        right, _ = reference.attention(inputs, torch.float32)
        assert float((out.float() - right).norm() / right.norm()) <= TOLERANCE["fp16"]


@pytest.mark.parametrize(
    ("causal", "window", "softcap"),
    [
        (True, None, None),
        (False, None, None),
        (True, 40, None),
        (False, (40, 20), None),
        (False, (40, None), None),
        (True, None, 1.5),
    ],
)
def test_gradients(causal: bool, window: Window, softcap: float | None) -> None:
    """Beside the closed formula in fp64, rows without a key included. Behind the sequences they are
    not written."""
    call = Call([70, 0, 200, 90], [70, 30, 150, 0], causal=causal, window=window, room=20)
    call.softcap = softcap
    leaves = [x.requires_grad_() for x in (call.q, call.k, call.v)]
    out, _ = call.run()
    grad = torch.randn_like(out)
    grad[call.rows :] = 0.0
    out = torch.where(torch.arange(len(out), device="cuda")[:, None, None] < call.rows, out, 0.0)
    made = torch.autograd.grad(out, leaves, grad)
    call.k, call.v = (x.detach().double() for x in leaves[1:])
    inputs = call.inputs(call.q.detach().double())
    right = gradients.gradients(inputs, *reference.attention(inputs), grad.double())
    for mine, theirs, count in zip(made, right, (call.rows, call.keys, call.keys), strict=True):
        mine, theirs = mine[:count], theirs[:count]
        assert mine.isfinite().all()
        assert float((mine.double() - theirs).norm() / theirs.norm()) <= 2 * TOLERANCE["bf16"]


@pytest.mark.parametrize(
    "text",
    [
        "b32_q4096_d128_varlen",
        "b16_q2048_d64_full_varlen",
        "b8_q4096_d256_w512_varlen",
        "b8_q4096_d128_full_w512_a100_softcap_varlen",
    ],
)
def test_random_configs_pass_the_gate(text: str) -> None:
    workload = Workload.parse(text)
    if not served(workload):
        pytest.skip(f"no kernel serves packed sequences on {seen_target().arch.name}")
    judge_random_configs(workload, CONFIGS)
