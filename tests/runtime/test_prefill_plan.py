"""tunefa/runtime/prefill_plan.py: what a plan hands to a kernel, without a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fake_kernel import FakeLanguage
from tests.support.paged_calls import made
from tunefa.runtime.call import PACKED, Options
from tunefa.runtime.choice import Chosen
from tunefa.runtime.kernel_plan import Launches
from tunefa.runtime.prefill_call import PrefillCall, PrefillTensors
from tunefa.runtime.prefill_plan import KernelPrefillPlan, Prefill, PyTorchPrefillPlan
from tunefa.runtime.process import Runtime

ANY_KERNEL: Any = None
OPTIONS = Options(causal=True, layout=PACKED, max_seqlen_q=12)


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


def tensors(**changes: Any) -> PrefillTensors:
    """The tensors of a call in bf16, some of them changed."""
    given = made(dtype=torch.float32)
    given |= {name: given[name].bfloat16() for name in "qkv"}
    names = [name for name in PrefillTensors._fields if name in given]
    return PrefillTensors(*(given[name] for name in names))._replace(**changes)


def job(given: PrefillTensors, out: Tensor | None = None) -> Prefill:
    return Prefill(PrefillCall.of(given, OPTIONS, None), out)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """The launches that were prepared for scales; device 3 is the current one."""
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 3, raising=False)
    return []


def plan_of(asked: Prefill, prepared: list[Recorded]) -> tuple[KernelPrefillPlan, Recorded]:
    """The plan, and its launch for the default scale."""

    def prepare(given: Sequence[Tensor], scale: float) -> Recorded:
        prepared.append(Recorded(scale, given))
        return prepared[-1]

    usual = Recorded(1.0)
    chosen = Chosen("fake", {}, "default", "", asked.workload())
    plan = asked.plan(chosen, Launches(3, usual, prepare))
    assert isinstance(plan, KernelPrefillPlan) and plan.device_bytes == 7
    return plan, usual


def test_a_kernel_gets_all_tensors_in_their_places(prepared: list[Recorded]) -> None:
    given = tensors(sinks=torch.zeros(4))
    plan, usual = plan_of(job(given), prepared)
    out, lse = plan.run(given, None, None)
    assert out.shape == given.q.shape and out.dtype == torch.bfloat16
    assert lse.shape == (4, len(given.q)) and lse.dtype == torch.float32
    more = given.seqlens_k, given.block_table, given.cu_seqlens_q, given.sinks
    wanted = (*given[:3], out, lse, *more)
    assert all(a is b for a, b in zip(usual.given[0], wanted, strict=True))
    assert plan.run(given, None, out)[0] is out, "where it is given"


def test_a_scale_is_prepared_once_with_heads_first(prepared: list[Recorded]) -> None:
    given = tensors()
    plan, usual = plan_of(job(given), prepared)
    for scale in (None, 16**-0.5, 0.5, 0.5, 2.0):
        out, _ = plan.run(given, scale, None)
        assert bool((out == (scale if scale in (0.5, 2.0) else 1.0)).all())
    assert len(usual.given) == 2 and [each.scale for each in prepared] == [0.5, 2.0]
    k = given.k
    for each in prepared[0].prepared_with[1:3]:
        assert each.shape == (k.shape[0], k.shape[2], k.shape[1], k.shape[3])
    again = job(given).tensors()
    mine = [(each.shape, each.stride()) for each in again]
    assert mine == [(each.shape, each.stride()) for each in prepared[0].prepared_with]


def test_rows_of_q_that_are_not_contiguous_are_copied(prepared: list[Recorded]) -> None:
    given = tensors()
    strided = given._replace(q=given.q.transpose(1, 2).contiguous().transpose(1, 2))
    asked = job(strided)
    plan, usual = plan_of(asked, prepared)
    plan.run(strided, None, None)
    for seen in (usual.given[0][0], asked.tensors()[0]):
        assert seen.stride() == given.q.stride(), "a launch is prepared for what it gets"
    assert asked.why_not(ANY_KERNEL) is None


@pytest.mark.parametrize("name", ["k", "v", "out"])
def test_no_kernel_reads_a_cache_whose_rows_are_not_contiguous(name: str) -> None:
    plain = tensors()
    values = {"k": plain.k, "v": plain.v, "out": torch.empty_like(plain.q)}
    values[name] = values[name].transpose(-2, -1).contiguous().transpose(-2, -1)
    given = plain._replace(k=values["k"], v=values["v"])
    said = f"the rows of {name} are not contiguous"
    assert job(given, values["out"]).why_not(ANY_KERNEL) == said
    assert job(plain).why_not(ANY_KERNEL) is None


def test_launches_are_prepared_on_the_call_s_tensors() -> None:
    given, own = tensors(), torch.empty_like(tensors().q)
    assert job(given, own).tensors()[3] is own
    asked = job(given)
    assert asked.asked() == asked.workload() and set(asked.inputs) == {"q", "k", "v"}
    assert asked.tensors()[5:] == (given.seqlens_k, given.block_table, given.cu_seqlens_q)


def test_in_pytorch_rows_that_see_nothing_are_zero_or_the_sink() -> None:
    plan = job(tensors()).in_pytorch(Chosen("pytorch", {}, "pytorch", "", None))
    assert isinstance(plan, PyTorchPrefillPlan) and plan.device_bytes == 0
    sinks = torch.arange(4.0)
    for given, lse_there in ((tensors(), None), (tensors(sinks=sinks), sinks)):
        own = torch.full_like(given.q, torch.nan)
        out, lse = plan.run(given, None, own)
        assert out is own and not out[18:21].any(), "a sequence without keys"
        assert not out[21:26].any(), "queries before its first key"
        for rows in (slice(18, 21), slice(21, 26)):
            right = torch.full((4, 1), -torch.inf) if lse_there is None else lse_there[:, None]
            assert torch.equal(lse[:, rows], right.expand(4, rows.stop - rows.start))
        assert bool(out[26:28].any()) and bool(out[28:].isnan().all()), "rows of no sequence"


def test_a_kept_plan_in_pytorch_serves_longer_sequences_with_its_key(
    fresh: Runtime, language: FakeLanguage
) -> None:
    fresh.planner.kernels = ()
    plan = fresh.caches._prefill("key", job(tensors()))
    assert isinstance(plan, PyTorchPrefillPlan) and plan.options.max_seqlen_q == 16
