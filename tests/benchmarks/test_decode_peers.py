"""benchmarks/decode_peers.py: what is asked of FlashInfer and TileOPs, by stand-ins."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import decode_peers
from tunefa.measure import ops
from tunefa.spec.workload import Workload


class Wrapper:
    """FlashInfer's wrapper over pages, as its documentation describes it, on the CPU."""

    made: Any = None

    def __init__(self, workspace: Tensor, layout: str, use_tensor_cores: bool) -> None:
        assert layout == "NHD"
        self.cores, Wrapper.made = use_tensor_cores, self

    def plan(
        self, indptr: Tensor, indices: Tensor, last: Tensor, *sizes: int, **dtypes: torch.dtype
    ) -> None:
        self.pages = indptr, indices, last, sizes
        assert set(dtypes.values()) == {torch.bfloat16}

    def run(self, q: Tensor, cache: tuple[Tensor, Tensor]) -> None:
        indptr, indices, last, (heads, heads_kv, dim, page) = self.pages
        assert q.shape == (len(last), heads, dim)
        self.out = torch.empty_like(q)
        for number, row in enumerate(q.float()):
            own = indices[indptr[number] : indptr[number + 1]].long()
            keys = (len(own) - 1) * page + int(last[number])
            k, v = (
                x[own].flatten(0, 1)[:keys].float().repeat_interleave(heads // heads_kv, 1)
                for x in cache
            )
            scores = torch.einsum("hd,khd->hk", row, k) * dim**-0.5
            self.out[number] = torch.einsum("hk,khd->hd", scores.softmax(-1), v).to(q.dtype)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("flashinfer")
    module.BatchDecodeWithPagedKVCacheWrapper = Wrapper
    monkeypatch.setitem(sys.modules, "flashinfer", module)


@pytest.mark.parametrize(
    ("text", "cores"), [("h4_kv2_k37_page8", False), ("h8_kv2_k32_page16", True)]
)
def test_flashinfer_is_planned_once_for_all_caches(text: str, cores: bool) -> None:
    workload = Workload.parse(f"decode_b3_{text}_d32")
    made = [ops.of(workload).tensors(workload, "cpu", seed) for seed in range(2)]
    peers = decode_peers.peers_of(workload)
    assert list(peers) == ["flashinfer"]
    peers["flashinfer"](made, workload)(0)
    found = Wrapper.made
    assert found.cores is cores
    right = ops.of(workload).expected(workload, "normal", made[0], torch.float32)
    made[0][3].copy_(found.out[:, :, None])
    made[0][4].copy_(right.lse)
    assert right.compare(made[0][3], made[0][4]).passed


class Dense:
    """TileOPs' dense attention, as its docstring says: heads behind rows, all contiguous."""

    out: Any = None

    def __init__(self, sm_scale: float) -> None:
        self.scale = sm_scale

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        assert all(each.is_contiguous() for each in (q, k, v))
        group = q.shape[2] // k.shape[2]
        keys, values = (x.float().repeat_interleave(group, 2) for x in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), keys) * self.scale
        found = torch.einsum("bhqk,bkhd->bhqd", scores.softmax(-1), values)
        Dense.out = found.to(q.dtype)


def test_tileops_gets_heads_behind_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("tileops.attention")
    module.GQADenseFwdOp = Dense
    monkeypatch.setitem(sys.modules, "tileops", ModuleType("tileops"))
    monkeypatch.setitem(sys.modules, "tileops.attention", module)
    workload = Workload.parse("decode_b3_h4_kv2_k37_d32")
    made = [ops.of(workload).tensors(workload, "cpu", seed) for seed in range(2)]
    decode_peers.tileops(made, workload)(1)
    right = ops.of(workload).expected(workload, "normal", made[1], torch.float32)
    assert right.compare(Dense.out, right.lse).passed
    monkeypatch.setattr(decode_peers, "MOST_COPIED_BYTES", 1000.0)
    with pytest.raises(ValueError, match="exceed 0 GB"):
        decode_peers.tileops(made, workload)


def test_several_queries_are_refused() -> None:
    workload = Workload.parse("decode_b3_h4_kv2_q2_k32_d32_page16")
    made = [ops.of(workload).tensors(workload, "cpu", 0)]
    with pytest.raises(ValueError, match="has 2 queries of a sequence"):
        decode_peers.flashinfer(made, workload)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("k64", {"cudnn", "fa2", "fa3", "tileops"}),
        ("k64_page16", {"flashinfer"}),
        ("k64_e4m3cache", set()),
        ("k64_page16_e4m3cache", set()),
        ("h16_k64_mla", {"sdpa"}),
        ("h16_k64_mla_page16", {"flashinfer"}),
    ],
)
def test_peers_by_the_kind_of_cache(text: str, names: set[str]) -> None:
    peers = decode_peers.peers_of(Workload.parse(f"decode_{text}"))
    assert set(peers) == names and names <= decode_peers.ALL_PEERS
