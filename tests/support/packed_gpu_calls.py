"""Calls of `tunefa.flash_attention_varlen` on a CUDA device, and how they are judged."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

import tunefa
from tests.support.gpu_kernels import served
from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.comparison import LSE_TOLERANCE, TOLERANCE
from tunefa.runtime.call import Options, Window
from tunefa.spec.workload import Workload


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
