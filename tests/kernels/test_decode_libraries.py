"""The kernels over a cache that call libraries. PyTorch's operator takes their arguments, on
tensors without data. What they ask of a library is the attention of the call, by stand-ins that
compute in fp64 what the libraries document."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import cache_libraries
from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec
from tunefa.measure import ops
from tunefa.measure.gate import Probe
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

FA2 = kernels.load("attention_decode_fa2")
WORKLOADS = [
    "b3_h4_kv2_k300_d64_varlen",
    "b1_h4_kv1_k70_d80_fp16",
    "b3_h8_kv8_q4_k90_d64_varlen",
    "b2_h4_kv2_q3_k90_d64_full_varlen",
    "b4_h4_kv2_q2_k120_d64_w20_varlen",
    "b3_h8_kv2_k600_d64_page256_varlen",
    "b3_h4_kv2_q3_k600_d64_page256_varlen",
    "b3_h4_kv2_q3_k600_d64_full_page256_varlen",
]


def case(kernel: kernels.Kernel, text: str) -> Case:
    return Case(kernel, Workload.parse(f"decode_{text}_batchvariant"), Target.named("sm90"))


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    cache_libraries.install(monkeypatch)


@pytest.mark.parametrize("text", WORKLOADS)
def test_what_is_asked_of_a_library_is_attention_over_the_cache(
    stand_ins: None, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(FA2.module, "version", lambda: "1")
    asked = case(FA2, text)
    assert asked.why_not() is None
    probe = Probe.of(asked.workload, "mixed", "cpu", torch.float64)
    assert FA2.module.is_aligned(probe.tensors)
    language = languages.load("library")
    spec = ops.of(asked.workload).launch_spec(asked, {})
    launch = language.prepare(spec, language.compile(asked, {}), probe.tensors)
    launch(*probe.tensors)
    found = probe.judge()
    assert found.passed and not found.strayed, found.reason


def test_lengths_beyond_the_cache_and_below_zero_are_not_passed_on(stand_ins: None) -> None:
    asked = case(FA2, "b3_h4_kv2_k40_d64")
    made = list(ops.of(asked.workload).tensors(asked.workload, "cpu", 0))
    made[5] = torch.tensor([2**30, -3, 0], dtype=torch.int32)
    spec = ops.of(asked.workload).launch_spec(asked, {})
    out, lse = FA2.module.run(tuple(made), spec)
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
    ("text", "says"),
    [
        ("k64_page16", "pages of a multiple of 256 keys"),
        ("k64_softcap", "soft-capped"),
        ("k64_sinks", "attention sinks"),
        ("h8_k64_mla", "latent attention"),
    ],
)
def test_it_says_what_it_does_not_serve(text: str, says: str) -> None:
    assert says in str(case(FA2, text).why_not())
    invariant = FA2.why_not(Workload.parse(f"decode_{text}"), archs.load("sm90"))
    assert "its bits depend on the batch" in str(invariant)
