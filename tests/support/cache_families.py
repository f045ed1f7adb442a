"""Random calls over a cache, on a CPU that stands for an H200, and plans made anew for them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime.decode_call import CacheCall, CacheOptions, CacheTensors
from tunefa.runtime.decode_plan import Decode, KernelCachePlan
from tunefa.runtime.process import Runtime

CAUSAL = CacheOptions()
MOST_PAGES, MOST_KEYS, MOST_BATCH = 40, 400, 9


@dataclass(frozen=True)
class CacheCalls:
    """Calls of one family: bf16 queries over a cache, contiguous or with pages."""

    heads: int = 8
    heads_kv: int = 2
    head_dim: int = 128
    rows: int = 1
    page_size: int | None = None
    e4m3: bool = False
    sinks: bool = False
    mla: bool = False
    options: CacheOptions = CAUSAL

    def call(self, chance: random.Random) -> CacheTensors:
        """Tensors of a call with another batch, cache and strides each time."""
        batch, keys = chance.randint(1, MOST_BATCH), chance.randint(60, MOST_KEYS)
        q = self._tensor(batch, self.rows, self.heads, chance, torch.bfloat16)
        table, cache = None, (batch, keys)
        if self.page_size:
            table = torch.zeros(batch, MOST_PAGES, dtype=torch.int32)[:, : chance.randint(4, 40)]
            cache = chance.randint(1, MOST_PAGES), self.page_size
        kind = E4M3 if self.e4m3 else torch.bfloat16
        k = self._tensor(*cache, self.heads_kv, chance, kind)
        v = self._tensor(*cache, self.heads_kv, chance, kind)
        if self.mla:
            v = k[..., :512]
        sinks = torch.zeros(self.heads) if self.sinks else None
        factors = [torch.ones(batch, self.heads_kv) if self.e4m3 else None for _ in range(2)]
        lengths = torch.ones(batch, dtype=torch.int32)
        return CacheTensors(q, k, v, lengths, table, sinks, *factors)

    def _tensor(
        self, batch: int, rows: int, heads: int, chance: random.Random, kind: torch.dtype
    ) -> Tensor:
        more = chance.choice([0, 0, 16])
        shape = (rows + more, heads) if self.options.layout == "bshd" else (heads, rows + more)
        made = torch.empty(batch, *shape, self.head_dim, dtype=kind)
        return made[:, :rows] if self.options.layout == "bshd" else made[:, :, :rows]


def made_anew(
    runtime: Runtime, given: CacheTensors, options: CacheOptions, out: Tensor | None = None
) -> KernelCachePlan:
    """The plan that is made where no family is known."""
    plan: Any = runtime.planner.plan(Decode(CacheCall.of(given, options, None), out))
    assert isinstance(plan, KernelCachePlan)
    return plan
