"""The kernels over a cache that call libraries. PyTorch's operator takes their arguments, on
tensors without data. What they ask of a library is the attention of the call, by stand-ins that
compute in fp64 what the libraries document."""

from __future__ import annotations

import importlib.util
import math
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec
from tunefa.measure import ops
from tunefa.measure.gate import Probe
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

FA2, FA3 = (kernels.load(f"attention_decode_{name}") for name in ("fa2", "fa3"))
WORKLOADS = [
    "b3_h4_kv2_k300_d64_varlen",
    "b1_h4_kv1_k70_d80_fp16",
    "b3_h8_kv8_q4_k90_d64_varlen",
    "b2_h4_kv2_q3_k90_d64_full_varlen",
    "b4_h4_kv2_q2_k120_d64_w20_varlen",
    "b3_h8_kv2_k600_d64_page256_varlen",
    "b3_h4_kv2_q3_k600_d64_page256_varlen",
]


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


def with_kvcache(
    q: Tensor, k: Tensor, v: Tensor, *, cache_seqlens: Tensor, page_table: Tensor | None,
    softmax_scale: float, causal: bool, window_size: tuple[int, int], softcap: float,
    return_softmax_lse: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """FlashAttention-3's function, as its documentation says."""
    assert return_softmax_lse and softcap == 0.0
    found = []
    for number, used in enumerate(cache_seqlens.tolist()):
        own = [x[number, :used] if page_table is None else pages_of(x, page_table[number], used)
                for x in (k, v)]  # fmt: skip
        window = (window_size[0], 0) if causal else window_size
        found.append(attention(q[number], own[0], own[1], softmax_scale, window))
    out, lse = (torch.stack(each) for each in zip(*found, strict=True))
    return out.to(q.dtype), lse.float(), "something else"


def case(kernel: kernels.Kernel, text: str) -> Case:
    return Case(kernel, Workload.parse(f"decode_{text}_batchvariant"), Target.named("sm90"))


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both libraries, in fp64 on the CPU."""
    monkeypatch.setattr(torch.ops.aten._flash_attention_forward, "default", operator)
    module: Any = ModuleType("flash_attn_interface")
    module.__spec__ = importlib.util.spec_from_loader(module.__name__, None)
    module.flash_attn_with_kvcache = with_kvcache
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("kernel", [FA2, FA3], ids=["fa2", "fa3"])
@pytest.mark.parametrize("text", WORKLOADS)
def test_what_is_asked_of_a_library_is_attention_over_the_cache(
    stand_ins: None, monkeypatch: pytest.MonkeyPatch, kernel: kernels.Kernel, text: str
) -> None:
    monkeypatch.setattr(kernel.module, "version", lambda: "1")
    asked = case(kernel, text)
    assert asked.why_not() is None
    probe = Probe.of(asked.workload, "mixed", "cpu", torch.float64)
    assert kernel.module.is_aligned(probe.tensors)
    language = languages.load("library")
    spec = ops.of(asked.workload).launch_spec(asked, {})
    launch = language.prepare(spec, language.compile(asked, {}), probe.tensors)
    launch(*probe.tensors)
    found = probe.judge()
    assert found.passed and not found.strayed, found.reason


@pytest.mark.parametrize("kernel", [FA2, FA3], ids=["fa2", "fa3"])
def test_lengths_beyond_the_cache_and_below_zero_are_not_passed_on(
    stand_ins: None, kernel: kernels.Kernel
) -> None:
    asked = case(kernel, "b3_h4_kv2_k40_d64")
    made = list(ops.of(asked.workload).tensors(asked.workload, "cpu", 0))
    made[5] = torch.tensor([2**30, -3, 0], dtype=torch.int32)
    spec = ops.of(asked.workload).launch_spec(asked, {})
    out, lse = kernel.module.run(tuple(made), spec)
    assert bool(lse[1:].isneginf().all()) and not out[1:].any()
    assert bool(lse[0].isfinite().all()) and made[5].tolist() == [2**30, -3, 0]


def without_data(asked: Workload) -> list[Tensor]:
    """The tensors of a launch, of which only the shapes are known."""
    found = []
    for x in ops.of(asked).tensors(asked, "cpu", 0):
        at: Any = {"dtype": x.dtype, "device": "meta"}
        found.append(torch.empty_strided(x.shape, x.stride(), **at))
    return found


@pytest.mark.parametrize("text", WORKLOADS)
def test_pytorch_s_operator_takes_its_arguments(text: str) -> None:
    asked = case(FA2, text)
    made = without_data(asked.workload)
    out, lse = FA2.module.run(made, LaunchSpec(asked, {}, 0.1))
    assert (out.shape, out.dtype) == (made[3].shape, made[3].dtype)
    assert (lse.shape, lse.dtype) == (made[4].shape, made[4].dtype)


@pytest.mark.parametrize("of_part", [False, True])
def test_sequences_of_a_larger_cache_are_read_where_they_lie(
    stand_ins: None, of_part: bool
) -> None:
    asked = case(FA2, "b2_h4_kv2_k40_d64")
    made = list(ops.of(asked.workload).tensors(asked.workload, "cpu", 0))
    spec = ops.of(asked.workload).launch_spec(asked, {})
    right = FA2.module.run(tuple(made), spec)
    for place in (1, 2):
        larger = torch.full((3, 50, 4, 64), math.nan, dtype=torch.bfloat16).transpose(1, 2)
        part = larger[1:, 1:3, 5:45] if of_part else larger[::2, 1:3, :40]
        made[place] = part.copy_(made[place])
    assert FA2.module.is_aligned(made)
    for found, wanted in zip(FA2.module.run(tuple(made), spec), right, strict=True):
        assert torch.equal(found, wanted)


def test_caches_that_no_library_reads_as_they_lie() -> None:
    workload = case(FA2, "b2_h4_kv2_k40_d64").workload
    made = ops.of(workload).tensors(workload, "cpu", 0)
    whole = torch.zeros(2, 2, 41 * 64 + 8, dtype=torch.bfloat16)
    apart = whole[..., : 40 * 64].view(2, 2, 40, 64)[:, :1]  # rows and a part of one
    odd = torch.zeros(2 * 40 * 2 * 64 + 1, dtype=torch.bfloat16)[1:].view(2, 2, 40, 64)
    shorter = torch.zeros(2, 2, 50, 64, dtype=torch.bfloat16)[:, :, :40]
    for k, v in ((apart, apart), (odd, odd), (made[1], shorter), (made[1], made[2].mT)):
        assert not FA2.module.is_aligned((made[0], k, v))
    alone = shorter[:1]
    assert FA2.module.is_aligned((made[0], alone, alone))


@pytest.mark.parametrize(
    ("kernel", "text", "says"),
    [
        (FA2, "k64_page16", "pages of a multiple of 256 keys"),
        (FA3, "k64_page16", None),
        (FA2, "k64_softcap", "soft-capped"),
        (FA3, "k64_softcap", None),
        (FA2, "k64_sinks", "attention sinks"),
        (FA3, "k64_e4m3cache", "a cache in e4m3"),
        (FA2, "h8_k64_mla", "latent attention"),
        (FA3, "k64_page16_prefix", "for several sequences at once"),
    ],
)
def test_libraries_say_what_they_do_not_serve(
    kernel: kernels.Kernel, text: str, says: str | None
) -> None:
    why = case(kernel, text).why_not()
    assert why is None if says is None else says in str(why)
    invariant = kernel.why_not(Workload.parse(f"decode_{text}"), archs.load("sm90"))
    assert "its bits depend on the batch" in str(invariant)


def test_the_version_is_that_of_the_package_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"fa3_fwd_interface"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in there else None)
    monkeypatch.setattr(metadata, "version", lambda name: {"fa3-fwd": "3.1"}[name])
    assert FA3.module.version() == "fa3-fwd 3.1"

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert FA3.module.version() is None
    there.clear()
    assert FA3.module.version() is None
