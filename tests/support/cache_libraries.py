"""Stand-ins for the libraries that kernels over a cache call: they compute in fp64 on the CPU what
the libraries document."""

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: tuple[int | None, int | None]
) -> tuple[Tensor, Tensor]:
    """(out, lse) of one sequence in fp64, (rows, heads, dim) and (heads, rows). A row that sees no
    key has 0 and an lse of inf, as in FlashAttention-2."""
    rows, keys, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    places = torch.arange(keys) - torch.arange(rows)[:, None] - (keys - rows)
    left, right = window
    hidden = torch.zeros(rows, keys, dtype=torch.bool)
    hidden |= places > (math.inf if right is None or right < 0 else right)
    hidden |= places < (-math.inf if left is None or left < 0 else -left)
    scores = scores.masked_fill(hidden, -math.inf)
    lse = scores.logsumexp(-1)
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1).nan_to_num(0.0), v)
    return out, lse.masked_fill(lse.isneginf(), math.inf)


def pages_of(cache: Tensor, table: Tensor, keys: int) -> Tensor:
    """The keys or values of a sequence."""
    return cache[table[: math.ceil(keys / cache.shape[1])].long()].flatten(0, 1)[:keys]


def operator(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, rows: int, keys: int,
    dropout: float, causal: bool, debug: bool, *, scale: float, window_size_left: int | None,
    window_size_right: int | None, seqused_k: Tensor, block_table: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """aten::_flash_attention_forward on packed sequences, as its documentation says."""
    assert (dropout, debug) == (0.0, False) and (starts_q.diff() == rows).all()
    assert {starts_q.dtype, starts_k.dtype, seqused_k.dtype} == {torch.int32}
    assert window_size_right == (0 if causal else None)
    out, lse = torch.empty_like(q), torch.empty(q.shape[1], len(q))
    for number, used in enumerate(seqused_k.tolist()):
        assert 0 <= used <= keys
        own = slice(*starts_q[number : number + 2].tolist())
        first = int(starts_k[number])
        if block_table is None:
            mine = k[first : first + used], v[first : first + used]
            assert len(mine[0]) == used
        else:
            mine = pages_of(k, block_table[number], used), pages_of(v, block_table[number], used)
        window = window_size_left, window_size_right
        found, lse[:, own] = attention(q[own], *mine, scale, window)
        out[own] = found.to(out.dtype)
    return out, lse, None, None, None  # type: ignore[return-value]


class Described:
    """A tensor of cuDNN's graph."""

    def __init__(self, name: str, dim: list[int], stride: list[int], data_type: str) -> None:
        self.name, self.dim, self.stride, self.data_type = name, dim, stride, data_type
        self.is_output = False

    def __getattr__(self, name: str) -> Any:
        def written(value: Any) -> Described:
            place = "is_output" if name == "set_output" else name.removeprefix("set_")
            setattr(self, place, value)
            return self

        return written

    def check(self, tensor: Tensor) -> Tensor:
        assert (list(tensor.shape), list(tensor.stride())) == (self.dim, self.stride), self.name
        kinds = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
        assert kinds.get(tensor.dtype, "int32") == self.data_type
        return tensor


class Graph:
    """cuDNN's graph of scaled dot-product attention with a padding mask, as it is documented. A
    sequence without keys gives NaN here, as nothing says what it gives."""

    def __init__(self, **types: str) -> None:
        assert types["compute_data_type"] == types["intermediate_data_type"] == "fp32"
        self.made = 0

    def tensor(self, **parts: Any) -> Described:
        return Described(**parts)

    def sdpa(self, **given: Any) -> list[Described]:
        self.given = given
        self.outputs = [Described(name, [], [], "") for name in ("out", "stats")]
        return self.outputs

    def __getattr__(self, name: str) -> Any:
        steps = ("validate", "build_operation_graph", "create_execution_plans", "check_support",
                 "build_plans")  # fmt: skip
        assert name == steps[self.made], f"{name} comes too early"
        self.made += 1
        return lambda *arguments: None

    def get_workspace_size(self) -> int:
        return 0

    def execute(self, tensors: Any, workspace: Tensor, handle: str) -> None:
        assert self.made == 5 and handle == "handle" and workspace.numel()
        seen = {
            name: each.check(tensors[each])
            for name, each in self.given.items()
            if isinstance(each, Described)
        }
        out, stats = (each.check(tensors[each]) for each in self.outputs)
        assert all(each.is_output for each in self.outputs) and self.given["use_padding_mask"]
        for number, used in enumerate(seen["seq_len_kv"].flatten().tolist()):
            assert int(seen["seq_len_q"].flatten()[number]) == seen["q"].shape[2]
            if used == 0:
                out[number], stats[number] = math.nan, math.nan
                continue
            table = seen.get("paged_attention_k_table")
            k, v = (seen[name] for name in "kv")
            if table is None:
                own = [x[number, :, :used].transpose(0, 1) for x in (k, v)]
            else:
                assert self.given["paged_attention_max_seq_len_kv"] >= used
                row = table[number, 0, :, 0]
                own = [pages_of(x.transpose(1, 2), row, used) for x in (k, v)]
            q = seen["q"][number].transpose(0, 1)
            found, lse = attention(q, own[0], own[1], self.given["attn_scale"], (None, None))
            out[number], stats[number] = found.transpose(0, 1).to(out.dtype), lse[..., None]


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts them in the places of the libraries."""
    monkeypatch.setattr(torch.ops.aten._flash_attention_forward, "default", operator)
    front: Any = ModuleType("cudnn")
    front.pygraph, front.heur_mode = Graph, SimpleNamespace(A=0)
    front.data_type = SimpleNamespace(BFLOAT16="bf16", HALF="fp16", FLOAT="fp32", INT32="int32")
    front.create_handle, front.set_stream = lambda: "handle", lambda handle, stream: None
    monkeypatch.setitem(sys.modules, "cudnn", front)
    stream = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
