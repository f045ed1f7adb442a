"""tunefa/runtime/few_queries.py: which calls split their keys, and that they compute the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fake_kernel import FakeKernel, FakeLanguage
from tests.support.hopper_on_cpu import hopper
from tests.support.sample_records import measured
from tunefa.compile.contract import CompileError
from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.runtime import few_queries
from tunefa.runtime.call import Call, Options, Tensors
from tunefa.runtime.few_queries import FewQueriesPlan
from tunefa.runtime.process import Runtime
from tunefa.spec import looked_up
from tunefa.spec.looked_up import LEAST_KEYS
from tunefa.spec.workload import Workload

SMS = 132
KEYS = LEAST_KEYS


def tensors(
    rows: int = 1, keys: int = KEYS, batch: int = 2, layout: str = "bshd", **changes: Any
) -> Tensors:
    """The tensors of a call with 4 heads over 2 KV heads of 16 columns, some of them changed."""
    torch.manual_seed(0)
    q = torch.randn(batch, rows, 4, 16).bfloat16()
    k, v = torch.randn(2, batch, keys, 2, 16).bfloat16()
    if layout == "bhsd":
        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    return Tensors(q, k, v)._replace(**changes)


def expected(given: Tensors, options: Options) -> tuple[Tensor, Tensor]:
    views = [x if options.layout == "bhsd" else x.transpose(1, 2) for x in given[:3]]
    q, k, v = views
    mask = options.window_left, None, options.softcap
    out, lse = reference.attention(AttentionInputs(q, k, v, options.causal, 0.25, *mask))
    return out if options.layout == "bhsd" else out.transpose(1, 2), lse


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize(
    ("rows", "keys", "batch", "answer"),
    [
        (1, KEYS, 2, True),
        (16, KEYS, 2, True),
        (17, KEYS, 2, False),
        (1, KEYS - 1, 2, False),
        (1, KEYS, 33, True),  # 66 tiles for 132 SMs
        (1, KEYS, 34, False),
        (0, KEYS, 2, False),
    ],
)
def test_few_queries_over_many_keys_leave_half_of_the_sms_idle(
    layout: str, rows: int, keys: int, batch: int, answer: bool
) -> None:
    given, options = tensors(rows, keys, batch, layout), Options(layout=layout)
    assert few_queries.serves(given, options, SMS) is answer
    if rows:
        asked = looked_up.of_call(Call.of(given, options, None).workload(), SMS)
        assert (asked.op == "decode") is answer


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"cu_seqlens": (torch.zeros(2), torch.zeros(2))}, Options(layout="thd")),
        ({"descales": (torch.ones(2, 2),) * 3}, Options()),
        ({"q": torch.zeros(2, 1, 4, 16).to(torch.float8_e4m3fn)}, Options()),
        ({"k": torch.zeros(2, KEYS, 2, 32)[..., ::2]}, Options()),
        ({"q": torch.zeros(1, 4, 16)}, Options()),
        ({}, Options(False, 9, None)),
        ({}, Options(False, 9, 2)),
    ],
)
def test_what_a_cache_lacks_stays_a_forward_pass(changes: Any, options: Options) -> None:
    assert not few_queries.serves(tensors(**changes), options, SMS)


CASES = [Options(), Options(True), Options(True, 40), Options(True, softcap=3.0)]


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("rows", [1, 5])
def test_searches_know_what_a_call_asks_for(options: Options, rows: int) -> None:
    given = tensors(rows)
    asked = looked_up.of_call(Call.of(given, options, None).workload(), SMS)
    assert asked == few_queries.job(given, options).asked() and asked.op == "decode"


@pytest.fixture
def both(fresh: Runtime, language: FakeLanguage) -> FakeLanguage:
    """Fake kernels of both ops, on a fake H200."""
    kernels: Any = FakeKernel(), FakeKernel(name="attention_decode_triton", op="decode")
    fresh.planner.kernels = kernels
    return language


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("rows", [1, 5])
def test_the_result_is_that_of_the_forward_pass(
    fresh: Runtime, both: FakeLanguage, options: Options, rows: int, layout: str
) -> None:
    given, options = tensors(rows, layout=layout), options._replace(layout=layout)
    plan = fresh.plan(given, options)
    assert isinstance(plan, FewQueriesPlan) and plan.chosen.kernel == "attention_decode_triton"
    assert plan.chosen.why.startswith("few queries, so the keys are split as over a cache; ")
    out, lse = plan.run(given, None)
    right, right_lse = expected(given, options)
    torch.testing.assert_close(out.float(), right.float(), atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(lse, right_lse.float(), atol=1e-3, rtol=1e-3)
    assert torch.equal(plan.output(given, None), out)
    assert fresh.plan(given, options) is plan


def test_lengths_that_grow_choose_and_compile_once(
    fresh: Runtime, both: FakeLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunefa.runtime import choose

    chosen: list[Workload] = []
    choose_anew = choose.choose

    def recorded(store: Any, workload: Workload, *rest: Any) -> Any:
        chosen.append(workload)
        return choose_anew(store, workload, *rest)

    monkeypatch.setattr(choose, "choose", recorded)
    for keys in range(KEYS, KEYS + 20):
        plan = fresh.plan(tensors(keys=keys), Options())
        workload = plan.chosen.workload
        assert workload is not None and workload.seqlen_k == keys
    assert [each.seqlen_k for each in chosen] == [8192]
    assert len(both.compiled) == 1


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_rows_of_q_that_are_not_contiguous_are_copied(
    fresh: Runtime, both: FakeLanguage, layout: str
) -> None:
    given = tensors(5, layout=layout)
    strided = given._replace(q=given.q.transpose(2, 3).contiguous().transpose(2, 3))
    options = Options(True, layout=layout)
    for _ in range(2):
        out, _ = fresh.plan(strided, options).run(strided, None)
        right, _ = expected(given, options)
        torch.testing.assert_close(out.float(), right.float(), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
    ("heads", "columns", "batch", "dtype"),
    [
        (4, 16, 2, torch.float64),
        (4, 16, 2, torch.float32),
        (4, 8, 2, torch.bfloat16),
        (4, 320, 1, torch.bfloat16),
        (4, 16, 0, torch.bfloat16),
        (0, 16, 2, torch.bfloat16),
    ],
)
def test_what_no_kernel_serves_is_computed_as_before(
    fresh: Runtime, both: FakeLanguage, heads: int, columns: int, batch: int, dtype: torch.dtype
) -> None:
    q = torch.zeros(batch, 1, heads, columns, dtype=dtype)
    short = torch.zeros(batch, KEYS - 1, 2, columns, dtype=dtype)
    long = torch.zeros(batch, KEYS, 2, columns, dtype=dtype)
    chosen = [fresh.plan(Tensors(q, k, k), Options()).chosen for k in (short, long)]
    assert chosen[0].kernel == chosen[1].kernel != "attention_decode_triton"


def test_what_does_not_compile_is_tried_once(
    fresh: Runtime, both: FakeLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    compiled = both.compile

    def compile(case: Any, *rest: Any) -> Any:
        tried.append(case.kernel.op)
        if case.kernel.op == "decode":
            raise CompileError("ptxas says no")
        return compiled(case, *rest)

    monkeypatch.setattr(both, "compile", compile)
    with pytest.warns(UserWarning) as warned:
        plans = [fresh.plan(tensors(keys=KEYS + i), Options()) for i in range(4)]
    assert {plan.chosen.kernel for plan in plans} == {"attention_fwd_triton"}
    assert tried.count("decode") == 1
    assert any("few queries is left to the forward pass" in str(each.message) for each in warned)


def test_without_a_kernel_for_it_the_forward_pass_runs(
    fresh: Runtime, language: FakeLanguage
) -> None:
    plan = fresh.plan(tensors(), Options())
    assert plan.chosen.kernel == "attention_fwd_triton"


def test_a_record_of_just_this_forward_pass_counts(fresh: Runtime, both: FakeLanguage) -> None:
    given, text = tensors(), f"b2_h4_kv2_q1_k{KEYS}_d16_bf16_full"
    config = {"BLOCK_M": 16, "USE_TMA": 0}
    fresh.planner.records.loaded = [measured(text, config=config, device="NVIDIA H200")]
    assert fresh.plan(given, Options()).chosen.kernel == "attention_fwd_triton"
    assert fresh.plan(given, Options(True)).chosen.kernel == "attention_decode_triton"


def test_gradients_follow(fresh: Runtime, both: FakeLanguage) -> None:
    import tunefa

    given = [x.float().requires_grad_() for x in tensors()[:3]]
    out = tunefa.flash_attention(*given)
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert all(x.grad is not None and bool(x.grad.isfinite().all()) for x in given)


def test_an_unaligned_call_decides_nothing_for_aligned_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime, _ = hopper(monkeypatch, "attention_decode_cuda_sm90", "attention_fwd_cuda_sm90")

    def call(elements: int) -> Tensors:
        """Its keys begin so many elements behind 16 bytes."""
        q = torch.empty(2, 1, 8, 128, dtype=torch.bfloat16)
        whole = torch.empty(8 + 2 * 1100 * 2 * 128, dtype=torch.bfloat16)
        k = whole[elements : elements + 2 * 1100 * 2 * 128].view(2, 1100, 2, 128)
        return Tensors(q, k, k.clone())

    assert not isinstance(runtime.plan(call(1), Options(True)), FewQueriesPlan)
    assert isinstance(runtime.plan(call(0), Options(True)), FewQueriesPlan)
