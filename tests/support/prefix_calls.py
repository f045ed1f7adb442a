"""Caches in pages whose sequences begin with the same pages, and attention over them from its
definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Problem(NamedTuple):
    """A call whose sequences share pages. Lengths may be 0, negative, or beyond the cache."""

    lengths: Sequence[int]
    shared: int
    """Pages at the beginning of the block table that are the same for all sequences."""
    columns: int
    """Pages in each row of the block table."""
    page_size: int = 16
    group: int = 1
    heads_kv: int = 2
    seqlen_q: int = 1
    head_dim: int = 32
    head_dim_v: int = 32
    dtype: str = "fp16"
    causal: bool = True
    softcap: bool = False
    sinks: bool = False

    @property
    def text(self) -> str:
        """The word of the workload."""
        flags = ["softcap"] * self.softcap + ["sinks"] * self.sinks
        keys = self.columns * self.page_size
        heads = self.group * self.heads_kv
        sizes = f"b{len(self.lengths)}_h{heads}_kv{self.heads_kv}_q{self.seqlen_q}_k{keys}"
        dims = f"d{self.head_dim}_dv{self.head_dim_v}_{self.dtype}"
        mask = "causal" if self.causal else "full"
        return "_".join(["decode", sizes, dims, mask, f"page{self.page_size}", "prefix", *flags])

    @property
    def keys(self) -> list[int]:
        """The keys of each sequence that count."""
        return [min(max(each, 0), self.columns * self.page_size) for each in self.lengths]

    @property
    def prefix_pages(self) -> int:
        """The pages that are read once: those of all sequences with keys, as far as every query
        sees all of their keys. Sequences share `shared` pages, and a single one all of its own."""
        with_keys = [each for each in self.keys if each > 0]
        hidden = self.seqlen_q - 1 if self.causal else 0
        seen = max(0, min(with_keys, default=0) - hidden) // self.page_size
        return seen if len(with_keys) == 1 else min(seen, self.shared)


def tensors(problem: Problem, device: str = "cpu", seed: int = 0) -> dict[str, Any]:
    """Arguments of `decode_attention`, with NaN in every slot that no sequence has. Entries behind
    the last page of a sequence are those of no page. Behind the shared pages, every other column of
    the block table is equal for all sequences again, as far as no page comes twice."""
    generator = torch.Generator(device).manual_seed(seed)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[problem.dtype]
    batch, page = len(problem.lengths), problem.page_size
    count = batch * problem.columns + 3
    order = torch.randperm(count, generator=generator, device=device).int()
    table = order[: batch * problem.columns].view(batch, problem.columns).clone()
    table[:, : problem.shared] = table[0, : problem.shared].clone()
    table[:, problem.shared + 1 :: 2] = table[0, problem.shared + 1 :: 2].clone()

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    used = torch.zeros(count, page, dtype=torch.bool, device=device)
    for sequence, keys in enumerate(problem.keys):
        pages = math.ceil(keys / page)
        for column in range(pages):
            used[table[sequence, column], : min(page, keys - column * page)] = True
        table[sequence, pages:] = 10**6
    made: dict[str, Any] = {
        "q": normal(batch, problem.seqlen_q, problem.group * problem.heads_kv, problem.head_dim),
        "k_cache": normal(count, page, problem.heads_kv, problem.head_dim),
        "v_cache": normal(count, page, problem.heads_kv, problem.head_dim_v),
        "seqlens": torch.tensor(problem.lengths, device=device, dtype=torch.int32),
        "block_table": table,
    }
    for name in ("k_cache", "v_cache"):
        made[name][~used] = math.nan
    if problem.sinks:
        made["sinks"] = torch.randn(made["q"].shape[2], generator=generator, device=device)
    return made


def expected(
    problem: Problem, made: dict[str, Any], softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Returns (out, lse) in fp64: each row of scores by itself, (batch, seqlen_q, heads,
    head_dim_v) and (batch, heads, seqlen_q)."""
    q, page = made["q"].double(), problem.page_size
    batch, rows, heads, _ = q.shape
    out = q.new_zeros(batch, rows, heads, problem.head_dim_v)
    lse = q.new_full((batch, heads, rows), -math.inf)
    for sequence, keys in enumerate(problem.keys):
        pages = made["block_table"][sequence, : math.ceil(keys / page)].long()
        k, v = (
            made[name][pages].flatten(0, 1)[:keys].double().repeat_interleave(problem.group, 1)
            for name in ("k_cache", "v_cache")
        )
        scores = torch.einsum("rhd,khd->hrk", q[sequence], k) * problem.head_dim**-0.5
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        if problem.causal:
            last = keys - rows + torch.arange(rows, device=q.device)
            hidden = torch.arange(keys, device=q.device)[None, :] > last[:, None]
            scores = scores.masked_fill(hidden, -math.inf)
        if "sinks" in made:
            of_heads = made["sinks"].double()[:, None, None].expand(heads, rows, 1)
            scores = torch.cat([scores, of_heads], 2)
            v = torch.cat([v, torch.zeros_like(v[:1])]) if keys else v.new_zeros(1, *v.shape[1:])
        lse[sequence] = scores.logsumexp(2)
        weights = scores.softmax(2).nan_to_num(0.0)
        out[sequence] = torch.einsum("hrk,khd->rhd", weights, v)
    return out, lse
