"""tunefa/runtime/kernel_plan.py: what a call gives, which launches are kept, without a device."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from tests.support.fake_kernel import on_cpu
from tests.support.planned_calls import TMA, call, plan_of, record, reference_of
from tunefa.runtime import backward, kernel_plan
from tunefa.runtime.call import Tensors, heads_first
from tunefa.runtime.kernel_plan import KernelPlan


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_runs_what_it_chose(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    made = call(layout)
    q, k, v = (heads_first(x, layout) for x in (made.q, made.k, made.v))
    with on_cpu(monkeypatch) as language:
        runs = plan_of(made, language, record(TMA))
        assert isinstance(runs, KernelPlan)
        out, lse = runs.run(Tensors(q, k, v), None)
        scaled, _ = runs.run(Tensors(q, k, v), 0.5)
        alone = runs.output(Tensors(q, k, v), None)
        own = torch.empty_like(out)
        assert runs.run(Tensors(q, k, v), None, own)[0] is own and torch.equal(own, out)
    right, right_lse = reference_of(made)
    assert out.shape == q.shape and out.is_contiguous()
    assert torch.equal(out, right) and torch.equal(lse, right_lse)
    assert torch.equal(scaled, reference_of(made, 0.5)[0])
    assert torch.equal(alone, right) and alone.is_contiguous()
    assert language.launched == [TMA, TMA, TMA, TMA]


@pytest.mark.parametrize("given", ["", "q", "kv", "qkv"])
def test_e4m3_gets_its_descales_and_gives_bf16(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    some = torch.rand(2, 2, 2)[..., 0] + 0.5
    descales = tuple(some if name in given else None for name in "qkv") if given else ()
    q = torch.randn(2, 16, 8, 64).to(torch.float8_e4m3fn)
    k = torch.randn(2, 16, 2, 64).to(torch.float8_e4m3fn)
    made, tensors = call(q=q, k=k, v=k, descales=descales), (q, k, k)
    with on_cpu(monkeypatch) as language:
        runs = plan_of(made, language)
        assert isinstance(runs, KernelPlan) and not runs.out_like_q
        for scale in (None, 0.5):
            out, lse = runs.run(Tensors(*tensors, None, descales), scale)
            right = reference_of(made, scale)
            assert out.dtype == torch.bfloat16 and out.shape == (2, 16, 8, 64)
            assert torch.equal(out, right[0]) and torch.equal(lse, right[1])


def test_a_plan_keeps_no_tensor_of_the_call_it_was_made_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = call()
    tensors = [weakref.ref(x) for x in (made.q, made.k, made.v)]
    with on_cpu(monkeypatch) as language:
        kept = plan_of(made, language)
        language.launched.clear()
        del made
        gc.collect()
        assert isinstance(kept, KernelPlan) and not any(each() is not None for each in tensors)


def test_rows_that_are_not_contiguous_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    made = call()
    strided = torch.randn(2, 16, 64, 8, dtype=torch.bfloat16).transpose(2, 3)
    made = call(q=strided, k=strided[:, :, :2], v=strided[:, :, 2:4])
    with on_cpu(monkeypatch) as language:
        runs = plan_of(made, language)
        out, _ = runs.run(Tensors(strided, strided[:, :, :2], strided[:, :, 2:4]), None)
    right, _ = reference_of(made)
    assert torch.equal(out, right)


def test_launches_by_scale_are_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = call()
    q, k, v = (heads_first(x, "bshd") for x in (made.q, made.k, made.v))
    with on_cpu(monkeypatch) as language:
        runs = plan_of(made, language)
        for _ in range(2):
            for scale in (None, 64**-0.5, 0.5, 0.25):
                runs.run(Tensors(q, k, v), scale)
        assert language.prepared == [64**-0.5, 0.5, 0.25]
        for scale in range(2, 11):
            runs.run(Tensors(q, k, v), float(scale))
        runs.run(Tensors(q, k, v), 0.5)  # dropped since
        assert len(language.prepared) == 3 + 9 + 1


def test_threads_prepare_a_scale_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = call()
    q, k, v = (heads_first(x, "bshd") for x in (made.q, made.k, made.v))
    start = threading.Barrier(4)
    with on_cpu(monkeypatch) as language:
        runs = plan_of(made, language)

        def run() -> None:
            start.wait()
            runs.run(Tensors(q, k, v), 0.5)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert language.prepared == [64**-0.5, 0.5] and len(language.launched) == 4


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_out_is_contiguous_whatever_q_s_strides(
    monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    packed = torch.randn(2, 16, 12, 64, dtype=torch.bfloat16)
    q, k, v = packed[:, :, :8], packed[:, :, 8:10], packed[:, :, 10:]
    dense = torch.randn(2, 8, 16, 64, dtype=torch.bfloat16).transpose(1, 2)  # heads outermost
    for each in (q, dense):
        made = call(layout, q=each, k=k, v=v)
        with on_cpu(monkeypatch) as language:
            runs = plan_of(made, language)
            x = [heads_first(tensor, layout) for tensor in (made.q, made.k, made.v)]
            out, lse = runs.run(Tensors(x[0], x[1], x[2]), None)
        right, right_lse = reference_of(made)
        assert out.is_contiguous() and torch.equal(out, right) and torch.equal(lse, right_lse)


def test_memory_of_launches_is_fp32_whatever_the_default_dtype_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels write an unread lse, and read a missing gradient of lse, in fp32."""
    made = torch.empty

    def empty(elements: int, *, device: torch.device, dtype: Any = None) -> torch.Tensor:
        assert device.type == "cuda"
        return made(elements, dtype=dtype)

    monkeypatch.setattr(kernel_plan, "apart", lambda _, make: make())
    monkeypatch.setattr(torch, "empty", empty)
    uncached: Any = kernel_plan._unread.__wrapped__, backward.zero.__wrapped__
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        lse, zero = uncached[0](0, 64), uncached[1](torch.device("cpu"))
    finally:
        torch.set_default_dtype(before)
    assert lse.dtype == zero.dtype == torch.float32 and lse.numel() == 64
