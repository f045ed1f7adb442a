"""tunefa/runtime/decode_plan.py: what a plan hands to a kernel and what it gives, without a
device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from tunefa.runtime import decode_plan
from tunefa.runtime.choice import Chosen
from tunefa.runtime.decode_call import CacheCall, CacheOptions, CacheTensors
from tunefa.runtime.decode_plan import Decode, KernelCachePlan, PyTorchCachePlan
from tunefa.runtime.kernel_plan import Launches

BATCH, ROWS, HEADS, DIM, DIM_V, KEYS = 2, 3, 4, 16, 32, 8
ANY_KERNEL: Any = None


@dataclass
class Recorded:
    """A launch that writes its scale, and remembers what it was given and prepared with."""

    scale: float
    prepared_with: Sequence[Tensor] = ()
    device_bytes: int = 7
    given: list[tuple[Tensor, ...]] = field(default_factory=list)

    def __call__(self, *tensors: Tensor) -> None:
        self.given.append(tensors)
        tensors[3].fill_(self.scale)
        tensors[4].fill_(self.scale)


def made(layout: str = "bshd", keys: int = KEYS, **changes: Any) -> CacheTensors:
    """The tensors of a call, some of them changed."""
    torch.manual_seed(0)
    turn = layout == "bhsd"
    q = torch.randn(BATCH, ROWS, HEADS, DIM).bfloat16()
    k, v = (torch.randn(BATCH, keys, 2, dim).bfloat16() for dim in (DIM, DIM_V))
    q, k, v = (x.transpose(1, 2).contiguous() if turn else x for x in (q, k, v))
    seqlens = torch.tensor([KEYS, 5], dtype=torch.int32)
    return CacheTensors(q, k, v, seqlens)._replace(**changes)


def job(tensors: CacheTensors, out: Tensor | None = None, **options: Any) -> Decode:
    return Decode(CacheCall.of(tensors, CacheOptions(**options), None), out)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """The launches that were prepared for scales; device 3 is the current one."""
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 3, raising=False)
    return []


def plan_of(asked: Decode, prepared: list[Recorded]) -> tuple[KernelCachePlan, Recorded]:
    """The plan, and its launch for the default scale."""

    def prepare(tensors: Sequence[Tensor], scale: float) -> Recorded:
        prepared.append(Recorded(scale, tensors))
        return prepared[-1]

    usual = Recorded(1.0)
    chosen = Chosen("fake", {}, "default", "", asked.workload())
    plan = asked.plan(chosen, Launches(3, usual, prepare))
    assert isinstance(plan, KernelCachePlan) and plan.device_bytes == 7
    return plan, usual


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_a_kernel_gets_all_tensors_in_their_places(layout: str, prepared: list[Recorded]) -> None:
    tensors = made(layout, sinks=torch.zeros(HEADS))
    plan, usual = plan_of(job(tensors, layout=layout), prepared)
    out, lse = plan.run(tensors, None, None)
    rows = (ROWS, HEADS) if layout == "bshd" else (HEADS, ROWS)
    assert out.shape == (BATCH, *rows, DIM_V) and out.dtype == torch.bfloat16
    assert lse.shape == (BATCH, HEADS, ROWS) and lse.dtype == torch.float32
    wanted = (*tensors[:3], out, lse, tensors.seqlens, tensors.sinks)
    (given,) = usual.given
    assert len(given) == 7 and all(a is b for a, b in zip(given, wanted, strict=True))
    assert plan.run(tensors, None, out)[0] is out, "where it is given"


def test_a_block_table_comes_before_the_sinks(prepared: list[Recorded]) -> None:
    table = torch.tensor([[0], [1]], dtype=torch.int32)
    tensors = made(block_table=table, sinks=torch.zeros(HEADS))
    plan, usual = plan_of(job(tensors), prepared)
    plan.run(tensors, None, None)
    assert usual.given[0][5:] == (tensors.seqlens, table, tensors.sinks)


def test_a_scale_is_prepared_once_with_heads_first(prepared: list[Recorded]) -> None:
    tensors = made()
    plan, usual = plan_of(job(tensors), prepared)
    for scale in (None, DIM**-0.5, 0.5, 0.5, 2.0):
        out, _ = plan.run(tensors, scale, None)
        assert bool((out == (scale if scale in (0.5, 2.0) else 1.0)).all())
    assert len(usual.given) == 2 and [each.scale for each in prepared] == [0.5, 2.0]
    assert [tuple(x.shape[:3]) for x in prepared[0].prepared_with[:4]] == [
        (BATCH, HEADS, ROWS), (BATCH, 2, KEYS), (BATCH, 2, KEYS), (BATCH, HEADS, ROWS)
    ]  # fmt: skip


def test_rows_of_q_that_are_not_contiguous_are_copied(prepared: list[Recorded]) -> None:
    tensors = made()
    strided = tensors.q.transpose(2, 3).contiguous().transpose(2, 3)
    asked = job(tensors._replace(q=strided))
    plan, usual = plan_of(asked, prepared)
    plan.run(tensors._replace(q=strided), None, None)
    for seen in (usual.given[0][0], asked.tensors()[0].transpose(1, 2)):
        assert seen.stride(-1) == 1 and torch.equal(seen, tensors.q)
        assert seen.stride() == tensors.q.stride(), "a launch is prepared for what it gets"
    assert asked.why_not(ANY_KERNEL) is None


@pytest.mark.parametrize("name", ["k_cache", "v_cache", "out"])
def test_no_kernel_reads_a_cache_whose_rows_are_not_contiguous(name: str) -> None:
    plain = made()
    values = {"k_cache": plain.k, "v_cache": plain.v, "out": torch.empty(BATCH, ROWS, HEADS, DIM_V)}
    values[name] = values[name].transpose(2, 3).contiguous().transpose(2, 3)
    tensors = plain._replace(k=values["k_cache"], v=values["v_cache"])
    said = f"the rows of {name} are not contiguous"
    assert job(tensors, values["out"]).why_not(ANY_KERNEL) == said
    assert job(plain).why_not(ANY_KERNEL) is None


def test_launches_are_prepared_on_the_call_s_tensors_with_heads_first() -> None:
    tensors = made(sinks=torch.zeros(HEADS))
    own = torch.empty(BATCH, ROWS, HEADS, DIM_V).bfloat16()
    for out in (None, own):
        q, _, v, written, lse, *more = job(tensors, out).tensors()
        assert q.shape == (BATCH, HEADS, ROWS, DIM) and v.shape == (BATCH, 2, KEYS, DIM_V)
        assert written.shape == (BATCH, HEADS, ROWS, DIM_V) and lse.shape == q.shape[:3]
        assert more[0] is tensors.seqlens and more[1] is tensors.sinks and len(more) == 2
    assert written.data_ptr() == own.data_ptr()
    assert {name: each.shape[2] for name, each in job(tensors).inputs.items()} == {
        "q": ROWS, "k_cache": KEYS, "v_cache": KEYS
    }  # fmt: skip


def test_a_config_is_looked_up_for_a_cache_that_is_longer_than_its_window() -> None:
    for left, keys in ((99, 8192), (9000, 9002)):
        asked = job(made(keys=20_000), window_left=left).asked()
        assert (asked.window_left, asked.seqlen_k, asked.batch) == (left, keys, 16)
        short = job(made(keys=left), window_left=left)
        assert short.workload().window_left is None, "it hides nothing there"
        assert short.asked() == asked, "its config is that of a longer neighbour's cache"


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("none", [0, -3])
def test_a_sequence_without_keys_gives_zero(layout: str, none: int) -> None:
    tensors = made(layout, seqlens=torch.tensor([none, 5], dtype=torch.int32))
    asked = job(tensors, layout=layout)
    plan = asked.in_pytorch(Chosen("pytorch", {}, "pytorch", "", None))
    assert isinstance(plan, PyTorchCachePlan) and plan.device_bytes == 0
    given = torch.full_like(asked.call.new_out(), math.nan)
    out, lse = plan.run(tensors, None, given)
    assert out is given and not out[0].any() and bool(lse[0].isneginf().all())
    assert bool(out[1].isfinite().all()) and bool(out[1].any()) and bool(lse[1].isfinite().all())
    sinks = torch.arange(HEADS) - 1.5
    with_sinks = tensors._replace(sinks=sinks)
    out, lse = plan.run(with_sinks, None, None)
    assert not out[0].any()
    assert torch.equal(lse[0], sinks[:, None].expand(HEADS, ROWS)), "the sink alone"
    out, lse = plan.run(tensors._replace(sinks=torch.full((HEADS,), -math.inf)), None, None)
    assert not out[0].any() and bool(lse[0].isneginf().all()), "a sink that takes nothing"


def test_the_scale_of_a_call_is_used_in_pytorch() -> None:
    tensors = made(seqlens=torch.full((BATCH,), KEYS, dtype=torch.int32))
    plan = job(tensors, causal=False).in_pytorch(Chosen("pytorch", {}, "pytorch", "", None))
    mean = tensors.v.float().mean(1).repeat_interleave(2, dim=1)[:, None]
    out, lse = plan.run(tensors, 0.0, None)
    torch.testing.assert_close(out.float(), mean.expand(out.shape), rtol=2**-8, atol=1e-6)
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(KEYS)))


def test_an_lse_that_is_not_read_is_not_allocated(
    prepared: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = torch.zeros(10_000)
    monkeypatch.setattr(decode_plan, "unread_lse", lambda device, elements: kept)
    tensors = made()
    plan, usual = plan_of(job(tensors), prepared)
    out, lse = plan.run(tensors, None, None)
    assert torch.equal(plan.output(tensors, None, None), out)
    assert plan.output(tensors, None, out) is out
    first, second, third = (each[4] for each in usual.given)
    assert first is lse and second is third and second.shape == lse.shape
    assert second.data_ptr() == kept.data_ptr()
