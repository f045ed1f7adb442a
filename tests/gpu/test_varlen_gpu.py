"""Packed sequences on a CUDA device: `tunefa.flash_attention_varlen` and the kernel behind it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.gpu_kernels import judge, judge_random_configs, seen_target, served
from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec
from tunefa.measure import check, reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.check import LSE_TOLERANCE, TOLERANCE
from tunefa.runtime.call import Options, Window
from tunefa.runtime.process import Runtime
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


@dataclass
class Call:
    """Tensors with `room` more rows and keys than the sequences have, and options."""

    seqlens_q: Sequence[int]
    seqlens_k: Sequence[int]
    heads: int = 4
    heads_kv: int = 2
    head_dim: int = 128
    head_dim_v: int = 128
    dtype: torch.dtype = torch.bfloat16
    causal: bool = True
    window: Window = None
    softcap: float | None = None
    room: int = 0

    def __post_init__(self) -> None:
        def normal(rows: int, heads: int, head_dim: int) -> Tensor:
            shape = (rows + self.room, heads, head_dim)
            return torch.randn(shape, device="cuda", dtype=self.dtype)

        self.rows, self.keys = sum(self.seqlens_q), sum(self.seqlens_k)
        self.q = normal(self.rows, self.heads, self.head_dim)
        self.k = normal(self.keys, self.heads_kv, self.head_dim)
        self.v = normal(self.keys, self.heads_kv, self.head_dim_v)
        self.cu_seqlens = (cumulated(self.seqlens_q), cumulated(self.seqlens_k))

    def run(self) -> tuple[Tensor, Tensor]:
        """(out, lse) through the public function."""
        return tunefa.flash_attention_varlen(
            self.q,
            self.k,
            self.v,
            *self.cu_seqlens,
            max(self.seqlens_q),
            max(self.seqlens_k),
            causal=self.causal,
            window=self.window,
            softcap=self.softcap,
            return_lse=True,
        )

    def inputs(self, q: Tensor) -> AttentionInputs:
        """The same for the reference, with these queries."""
        mask = Options.of(self.causal, self.window)
        sides, scale = (mask.window_left, mask.window_right), self.head_dim**-0.5
        starts_q, starts_k = self.cu_seqlens
        return AttentionInputs(
            *(q, self.k, self.v, mask.causal, scale, *sides, self.softcap),
            cu_seqlens=(starts_q, starts_k),
        )

    def judge(self, out: Tensor, lse: Tensor) -> None:
        """Raises AssertionError where (out, lse) of the sequences' rows are not near fp32."""
        right, right_lse = reference.attention(self.inputs(self.q[: self.rows]), torch.float32)
        out, lse = out[: self.rows], lse[:, : self.rows]
        seen = right_lse.isfinite()
        assert torch.equal(lse.isneginf(), ~seen), str(self)
        assert not out[~seen.t()].any(), str(self)
        error = float((out.float() - right).norm() / right.norm().clamp_min(1e-30))
        assert error <= TOLERANCE["bf16"], f"{error:.1e} on {self}: {tunefa.last_choice()}"
        off = (lse - right_lse)[seen].abs()
        assert off.numel() == 0 or float(off.max()) <= LSE_TOLERANCE, str(self)


def cumulated(seqlens: Sequence[int]) -> Tensor:
    return torch.tensor([*accumulate(seqlens, initial=0)], device="cuda", dtype=torch.int32)


def random_lengths(chance: random.Random, batch: int, longest: int) -> list[int]:
    return [chance.choice([0, 1, longest, chance.randint(0, longest)]) for _ in range(batch)]


def is_kernels() -> None:
    """Raises AssertionError where PyTorch ran what a kernel serves on this device."""
    chosen = tunefa.last_choice()
    serves = bool(served(Workload.parse("q64_varlen")))
    assert chosen is not None and (chosen.kernel != "pytorch") == serves, chosen


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


def test_other_lengths_take_neither_another_plan_nor_a_compiler(fresh: Runtime) -> None:
    chance = random.Random(0)
    for _ in range(20):
        seqlens = [chance.randint(65, 128) for _ in range(chance.randint(9, 16))]
        seqlens[0] = 128
        call = Call(seqlens, seqlens)
        call.judge(*call.run())
    assert len(fresh._plans) <= 2  # of up to 1,024 rows, and of up to 2,048


def test_a_graph_may_be_replayed_with_other_lengths() -> None:
    chance = random.Random(0)
    batch, longest, total = 12, 500, 2500

    def lengths() -> list[int]:
        found: list[int] = []
        while len(found) < batch:
            left = total - sum(found)
            found.append(min(left, chance.choice([0, 1, longest, chance.randint(0, longest)])))
        return found

    for causal in (True, False):
        call = Call(lengths(), lengths(), causal=causal)
        call.rows = call.keys = total
        call.q, call.k, call.v = (
            torch.randn(total, heads, 128, device="cuda", dtype=torch.bfloat16)
            for heads in (4, 2, 2)
        )
        arguments = (call.q, call.k, call.v, *call.cu_seqlens, longest, longest)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, lse = tunefa.flash_attention_varlen(*arguments, causal=causal, return_lse=True)
        is_kernels()
        for _ in range(6):
            call.seqlens_q, call.seqlens_k = lengths(), lengths()
            for cu_seqlens, seqlens in zip(
                call.cu_seqlens, (call.seqlens_q, call.seqlens_k), strict=True
            ):
                cu_seqlens.copy_(cumulated(seqlens))
            graph.replay()
            call.rows = sum(call.seqlens_q)
            call.judge(out, lse)


def test_many_calls_in_a_row_draw_every_tile_each_time() -> None:
    """Whoever draws a tile computes the same; and no call finds what another has counted."""
    chance = random.Random(0)
    calls = []
    for batch, longest in [(32, 1500), (3, 4000), (300, 40)] * 2:
        seqlens_q, seqlens_k = ([*random_lengths(chance, batch, longest), 70] for _ in range(2))
        calls.append(Call(seqlens_q, seqlens_k, heads=8))
    rights = []
    for call in calls:
        out, lse = call.run()
        is_kernels()
        call.judge(out, lse)
        rights.append((out[: call.rows], lse[:, : call.rows]))
    for _ in range(50):
        order = chance.sample(range(len(calls)), len(calls))
        made = {i: calls[i].run() for i in order}
        for i, (out, lse) in made.items():
            right, right_lse = rights[i]
            assert torch.equal(out[: calls[i].rows], right)
            assert torch.equal(lse[:, : calls[i].rows], right_lse)


def test_a_graph_of_many_calls_is_replayed_many_times() -> None:
    calls = [Call([900, 0, 64 + i, 2000], [900, 5, 64 + i, 2000], heads=8) for i in range(4)]
    rights = [call.run() for call in calls]
    is_kernels()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = [call.run() for call in calls]
    for _ in range(50):
        for out, lse in made:
            out.fill_(float("nan"))
            lse.fill_(float("nan"))
        graph.replay()
        for (out, lse), (right, right_lse) in zip(made, rights, strict=True):
            assert torch.equal(out, right) and torch.equal(lse, right_lse)


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
    """Of one KV head, of some, and of all: the same bits, as the order of tiles changes none."""
    workload = Workload.parse("b3_h24_kv6_q3000_d128_causal_varlen")
    cases = served(workload)
    if not cases:
        pytest.skip(f"no kernel serves packed sequences on {seen_target().arch.name}")
    case, gate, made = cases[0], check.Gate("cuda"), []
    for megabytes in (4, 8, 32):
        config = {**case.default(), "L2_SECTION_MB": megabytes}
        judge(case, config, gate)
        tensors = check.tensors(workload, "cuda", seed=0)
        language = languages.load(case.kernel.language)
        compiled = language.compile(case, config)
        language.prepare(LaunchSpec(case, config, 0.1), compiled, tensors)(*tensors)
        made.append(tensors[3])
    assert torch.equal(made[0], made[1]) and torch.equal(made[0], made[2])


def test_two_streams_share_a_plan() -> None:
    calls = [Call([300 + i, 40, 700], [300 + i, 40, 700]) for i in range(2)]
    rights = [call.run()[0] for call in calls]
    streams = [CUDA.Stream() for _ in calls]
    torch.cuda.synchronize()
    for _ in range(30):
        outs = []
        for call, stream in zip(calls, streams, strict=True):
            with torch.cuda.stream(stream):
                outs.append(call.run()[0])
        torch.cuda.synchronize()
        for out, right in zip(outs, rights, strict=True):
            assert torch.equal(out, right)


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
    """Beside the closed formula in fp64; rows without a key and padding included."""
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
    right = reference.gradients(inputs, *reference.attention(inputs), grad.double())
    for mine, theirs in zip(made, right, strict=True):
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
