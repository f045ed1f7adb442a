"""tunefa/runtime/api.py with packed sequences: the plans that run them."""

from __future__ import annotations

import gc
import weakref
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from tests.support.fake_kernel import FakeLanguage
from tests.support.packed_calls import (
    SEQLENS,
    changed,
    flat,
    inputs,
    packed_options,
    right,
    tensors,
)
from tests.support.packed_sequences import starts
from tunefa.compile.contract import LaunchSpec
from tunefa.errors import TunefaError
from tunefa.measure import reference
from tunefa.measure.gradients import Gradients
from tunefa.runtime import kernel_plan
from tunefa.runtime.backward import PyTorchGradients
from tunefa.runtime.call import Tensors
from tunefa.runtime.kernel_plan import KernelPlan
from tunefa.runtime.plan_key import plan_key
from tunefa.runtime.process import Runtime
from tunefa.spec.workload import Workload


@pytest.fixture
def served(language: FakeLanguage, monkeypatch: pytest.MonkeyPatch) -> FakeLanguage:
    """A fake language whose launches compute packed sequences, whatever their lengths."""

    def launch(spec: LaunchSpec, tensors: Any) -> None:
        workload, scale, softcap = spec.case.workload, spec.scale, spec.softcap
        q, k, v, out, lse, *cu_seqlens = tensors
        assert workload.varlen and workload.softcap == (softcap is not None)
        mask = (workload.window_left, workload.window_right)
        given = inputs(Tensors(q, k, v, tuple(cu_seqlens)), workload.causal, scale, *mask, softcap)
        # An lse that nobody reads may have more rows.
        for written, made in zip((out, lse[:, : len(q)]), reference.attention(given), strict=True):
            written.copy_(made)
        language.launched.append(dict(spec.config))

    def prepare(spec: LaunchSpec, compiled: Any, tensors: Any) -> Any:
        language.prepared.append(spec.scale)

        class Launch:
            device_bytes = 0

            def __call__(self, *tensors: Tensor) -> None:
                launch(spec, tensors)

        return Launch()

    monkeypatch.setattr(language, "prepare", prepare)
    return language


def plan_for(fresh: Runtime, made: Tensors, *options: Any) -> KernelPlan:
    plan = fresh.plan(made, packed_options(*(options or (9, 9, True))))
    return cast(KernelPlan, plan)


def test_a_plan_keeps_no_tensor_of_the_call_it_was_made_for(
    fresh: Runtime, served: FakeLanguage
) -> None:
    made = tensors()
    alive = [weakref.ref(each) for each in flat(made)]
    kept = plan_for(fresh, made)
    del made
    gc.collect()
    assert kept.chosen.kernel != "pytorch" and not any(each() is not None for each in alive)


@pytest.mark.parametrize("name", ["q", "k", "cu_seqlens_q", "cu_seqlens_k"])
def test_tensors_without_axes_have_a_key_of_their_own(name: str) -> None:
    made = tensors()
    names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
    odd = changed(made, **{name: flat(made)[names.index(name)].flatten()[0]})
    assert plan_key(odd, packed_options(9, 9)) != plan_key(made, packed_options(9, 9))


def test_a_kernel_runs_it(fresh: Runtime, served: FakeLanguage) -> None:
    made = tensors()
    plan = plan_for(fresh, made)
    assert plan.chosen.workload == Workload.parse("b4_h4_kv2_q16_d32_dv16_fp32_varlen")
    out, lse = plan.run(made, None)
    for mine, theirs in zip((out, lse), right(made, True), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert len(served.launched) == 1 and len(served.compiled) == 1


def test_without_lse_it_is_written_to_memory_that_nobody_reads(
    fresh: Runtime, served: FakeLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has room for all numbers of rows of the plan, and is made once."""
    asked: list[int] = []

    def unread(device: int, elements: int) -> Tensor:
        asked.append(elements)
        return torch.empty(elements + 4)

    monkeypatch.setattr(kernel_plan, "unread_lse", unread)
    plan = plan_for(fresh, tensors(9, 9, 9), 9, 9, True)
    for seqlens in ((9, 9, 9), (9, 9, 9), (10, 0, 7), (9, 10, 9), (16, 16, 0), (16, 1, 0)):
        made = tensors(*seqlens)
        torch.testing.assert_close(plan.output(made, None), right(made, True)[0])
    assert asked == [4 * 32]


def test_a_kernel_gets_the_mask_and_the_soft_cap(fresh: Runtime, served: FakeLanguage) -> None:
    made = tensors()
    plan = plan_for(fresh, made, 9, 9, False, 2, 2, 1.5)
    text = "b4_h4_kv2_q16_d32_dv16_fp32_full_w3_a2_softcap_varlen"
    assert plan.chosen.workload == Workload.parse(text)
    for mine, theirs in zip(plan.run(made, None), right(made, False, (2, 2), 1.5), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_rows_that_are_not_contiguous_are_copied(fresh: Runtime, served: FakeLanguage) -> None:
    made = tensors()
    strided = changed(made, q=torch.stack([made.q, made.q], -1)[..., 0])
    plan = plan_for(fresh, strided)
    assert plan is not plan_for(fresh, made) and not plan.rows_contiguous
    torch.testing.assert_close(plan.run(strided, None)[0], right(made, True)[0])


def test_lengths_of_the_same_powers_of_two_share_a_plan(
    fresh: Runtime, served: FakeLanguage
) -> None:
    plan = plan_for(fresh, tensors(9, 9, 9), 9, 9, True)  # 27 rows, 3 sequences
    for seqlens in ((10, 0, 7), (8, 9, 10, 5), (16, 1, 0)):
        made = tensors(*seqlens)
        assert plan_for(fresh, made, 16, 12, True) is plan
        torch.testing.assert_close(plan.run(made, None)[0], right(made, True)[0])
    assert len(served.prepared) == 1
    others = [
        plan_for(fresh, tensors(9, 9, 0), 17, 9, True),
        plan_for(fresh, tensors(9, 9, 9), 9, 17, True),
        plan_for(fresh, tensors(9, 9), 9, 9, True),
        plan_for(fresh, tensors(16, 16, 1), 9, 9, True),
        plan_for(fresh, tensors(9, 9, 9), 9, 9, False),
        plan_for(fresh, tensors(9, 9, 9), 9, 9, True, 2),
        plan_for(fresh, tensors(9, 9, 9), 9, 9, False, None, 2),
        plan_for(fresh, tensors(9, 9, 9), 9, 9, True, None, None, 1.5),
    ]
    assert len({id(each) for each in [plan, *others]}) == 9


def test_what_is_refused_meets_no_plan_of_what_fits(fresh: Runtime, served: FakeLanguage) -> None:
    made = tensors()
    plan_for(fresh, made)
    for changes in (
        {"v": torch.ones(15, 2, 16)},
        {"cu_seqlens_k": starts(16)},
        {"cu_seqlens_q": starts(*SEQLENS).long()},
        {"cu_seqlens_q": starts(*SEQLENS).repeat_interleave(2)[::2]},
    ):
        with pytest.raises(TunefaError):
            plan_for(fresh, changed(made, **changes))


def test_a_scale_of_its_own_is_prepared_once(fresh: Runtime, served: FakeLanguage) -> None:
    made = tensors()
    plan = plan_for(fresh, made)
    for _ in range(2):
        out, _ = plan.run(made, 0.5)
        torch.testing.assert_close(out, reference.attention(inputs(made, True, 0.5))[0])
    assert served.prepared == [32**-0.5, 0.5]


def test_without_keys_nothing_is_launched(fresh: Runtime, served: FakeLanguage) -> None:
    made = tensors(5, 4, keys=(0, 0))
    plan = plan_for(fresh, made)
    out, lse = plan.run(made, None)
    assert plan.chosen.why == "pytorch: a tensor is empty: there is nothing to compute"
    assert not out.any() and lse.isneginf().all() and not served.launched


def test_a_plan_in_pytorch_serves_longer_sequences_with_its_key(
    fresh: Runtime, language: FakeLanguage
) -> None:
    """A key is that of all longest sequences with the same next power of two."""
    fresh.planner.kernels = ()
    short, long = tensors(5, 9, 7), tensors(0, 15, 6)
    plan = fresh.plan(short, packed_options(9, 9, True))
    assert fresh.plan(long, packed_options(15, 15, True)) is plan
    for made in (short, long):
        for mine, theirs in zip(plan.run(made, None), right(made, True), strict=True):
            torch.testing.assert_close(mine, theirs)
    given = Gradients(*plan.run(short, None), torch.ones(21, 4, 16), None)
    grads = fresh.backward_plan(short, packed_options(9, 9, True), given)
    assert isinstance(grads, PyTorchGradients) and grads.options.max_seqlen_k == 16
    with pytest.raises(TunefaError, match="max_seqlen_q is at most 16 and a sequence is 17 long"):
        plan.run(tensors(17, 3), None)
