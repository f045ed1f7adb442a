"""Random calls of attention for `benchmarks.soak`, and steps of training with them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import tunefa
from tunefa.measure import reference
from tunefa.measure.comparison import TOLERANCE
from tunefa.measure.gradients import gradients
from tunefa.runtime.call import PACKED, Call, Options, Tensors, heads_first

GRADIENT_TOLERANCE = 2e-2
"""Limit of the relative error of all gradients together, in bf16."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "window": {"window": (70, 30)},
    "softcap": {"softcap": 20.0},
    "scale": {"scale": 0.2},
    "packed": {},
}
"""The further arguments of each kind of call. Packed calls use `flash_attention_varlen`."""


@dataclass(frozen=True)
class RandomCall:
    """One call, with its tensors' shapes and memory layout."""

    batch: int
    heads: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    dtype: str
    causal: bool
    bhsd: bool
    """Whether heads come before seqlen, in shape and in memory."""
    offset: int
    """Elements before the tensor in its memory; with an odd number it is not aligned."""
    padding: int
    """Unused elements between rows, as in a slice of a wider tensor."""
    kind: str = "plain"
    """One of `KINDS`."""

    @classmethod
    def draw(cls, chance: random.Random) -> RandomCall:
        """Draws a call. Properties that need a binary of their own have few values."""
        group, heads_kv = chance.choice([1, 1, 4, 7]), chance.randint(1, 4)
        seqlen_q = chance.choice([1, chance.randint(2, 200), chance.randint(200, 1500)])
        kind = chance.choice(["plain"] * 3 + list(KINDS))
        dtypes = [name for name in DTYPES if kind != "packed" or name != "e4m3"]
        return cls(
            batch=chance.randint(1, 3),
            heads=group * heads_kv,
            heads_kv=heads_kv,
            seqlen_q=seqlen_q,
            seqlen_k=chance.choice([seqlen_q, chance.randint(1, 1500)]),
            head_dim=chance.choice([64, 128]),
            dtype=chance.choice(dtypes),
            causal=chance.random() < 0.5,
            bhsd=chance.random() < 0.5,
            offset=chance.choice([0, 0, 0, 1]),
            padding=chance.choice([0, 64]),
            kind=kind,
        )

    def tensors(self, device: str) -> tuple[Tensor, Tensor, Tensor]:
        """Random q, k and v."""
        return (
            self._tensor(device, self.heads, self.seqlen_q),
            self._tensor(device, self.heads_kv, self.seqlen_k),
            self._tensor(device, self.heads_kv, self.seqlen_k),
        )

    def _tensor(self, device: str, heads: int, seqlen: int) -> Tensor:
        rows = (self.batch, heads, seqlen) if self.bhsd else (self.batch, seqlen, heads)
        row = self.head_dim + self.padding
        count = rows[0] * rows[1] * rows[2] * row
        memory = torch.randn(self.offset + count, device=device).to(DTYPES[self.dtype])
        return memory[self.offset :].view(*rows, row)[..., : self.head_dim]

    def run(self, device: str, compared: bool) -> str | None:
        """Calls tunefa; returns what is wrong with the output, if it is `compared`, else None."""
        out, inputs = self.attend(*self.tensors(device))
        if not compared:
            return None
        return self.wrong([out], [reference.attention(inputs, torch.float32)[0]])

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Call]:
        """Returns tunefa's output, and the call; dense tensors have heads first."""
        call = self.call(q, k, v)
        if call.cu_seqlens is not None:
            most = call.q.shape[0], call.k.shape[0]
            packed = call.q, call.k, call.v, *call.cu_seqlens
            return tunefa.flash_attention_varlen(*packed, *most, causal=self.causal), call
        given = {"causal": self.causal, **KINDS[self.kind]}
        layout: Any = call.options.layout
        return heads_first(tunefa.flash_attention(q, k, v, **given, layout=layout), layout), call

    def call(self, q: Tensor, k: Tensor, v: Tensor) -> Call:
        """Returns the call with these tensors. Packed are three sequences, the second of them
        empty."""
        given = KINDS[self.kind]
        if self.kind != "packed":
            layout = "bhsd" if self.bhsd else "bshd"
            options = Options.of(self.causal, given.get("window"), layout, given.get("softcap"))
            return Call.of(Tensors(q, k, v), options, given.get("scale"))
        q, k, v = map(self.arranged, (q, k, v))
        starts = [
            torch.tensor([0, n // 3, n // 3, n], dtype=torch.int32, device=q.device)
            for n in (q.shape[0], k.shape[0])
        ]
        more = q.shape[0], k.shape[0], False
        options = Options.of(self.causal, None, PACKED, None, more)
        return Call.of(Tensors(q, k, v, (starts[0], starts[1])), options, None)

    def arranged(self, x: Tensor) -> Tensor:
        """Returns a tensor of the call's layout with heads first, or packed."""
        if self.kind == "packed":
            return (x.transpose(1, 2) if self.bhsd else x).flatten(0, 1)
        return heads_first(x, "bhsd" if self.bhsd else "bshd")

    def wrong(self, made: Sequence[Tensor], right: Sequence[Tensor]) -> str | None:
        """Says by how much results are off, if by too much."""
        pairs = zip(made, right, strict=True)
        off = sum(float((mine.float() - x).square().sum()) for mine, x in pairs)
        size = sum(float(x.float().square().sum()) for x in right)
        error, limit = (off / max(size, 1e-30)) ** 0.5, self.limit
        return None if error <= limit else f"error {error:.1e} (limit {limit:.0e}): {self}"

    @property
    def limit(self) -> float:
        """The limit of the error that `wrong` computes."""
        return TOLERANCE[self.dtype]


class TrainingStep(RandomCall):
    """One call in bf16 with a causal mask, and its gradients. Compiling a backward kernel takes
    many seconds, so that properties that need a binary of their own have few values."""

    @classmethod
    def draw(cls, chance: random.Random) -> TrainingStep:
        """Draws a call; its lengths change from step to step."""
        kind = chance.choice(["plain", "plain", "packed"])
        drawn = replace(super().draw(chance), dtype="bf16", causal=True, kind=kind, offset=0)
        return cls(**vars(drawn))

    def run(self, device: str, compared: bool) -> str | None:
        """Computes the gradients; returns what is wrong with them, if they are `compared`."""
        leaves = [x.requires_grad_() for x in self.tensors(device)]
        out, inputs = self.attend(*leaves)
        grad = torch.randn_like(out)
        made = torch.autograd.grad(out, leaves, grad)
        if not compared:
            return None
        with torch.no_grad():
            right_out, lse = reference.attention(inputs, torch.float32)
            right = gradients(inputs, right_out, lse, grad)
        return self.wrong([*map(self.arranged, made)], right)

    @property
    def limit(self) -> float:
        """The limit of the error that `wrong` computes."""
        return GRADIENT_TOLERANCE
