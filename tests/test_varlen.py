"""`flash_attention_varlen`: its arguments, its plans, autograd and torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.fake_kernel import FakeLanguage
from tests.test_packed import starts
from tunefa import packed, varlen
from tunefa.errors import TunefaError
from tunefa.packed import Packed
from tunefa.packed_call import PackedCall, PackedOptions, PackedTensors, plan_key
from tunefa.packed_plan import PackedKernelPlan
from tunefa.runtime import Runtime
from tunefa.workload import Workload

SEQLENS = (5, 0, 9, 2)


def tensors(
    *seqlens: int, keys: tuple[int, ...] = (), dtype: torch.dtype = torch.float32
) -> PackedTensors:
    seqlens = seqlens or SEQLENS
    keys = keys or seqlens
    generator = torch.Generator().manual_seed(0)

    def normal(rows: int, heads: int, head_dim: int) -> Tensor:
        return torch.randn(rows, heads, head_dim, generator=generator, dtype=dtype)

    q, k, v = normal(sum(seqlens), 4, 32), normal(sum(keys), 2, 32), normal(sum(keys), 2, 16)
    return PackedTensors(q, k, v, starts(*seqlens), starts(*keys))


def call(made: PackedTensors, **options: Any) -> Any:
    return tunefa.flash_attention_varlen(*made, 9, 9, **options)


def right(made: PackedTensors, causal: bool = False, window: int | None = None) -> Any:
    return packed.attention(Packed(*made, causal, 32**-0.5, window))


# -------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": 3}])
def test_off_cuda_it_is_pytorch_s(fresh: Runtime, options: dict[str, Any]) -> None:
    made = tensors()
    out, lse = call(made, return_lse=True, **options)
    for mine, theirs in zip((out, lse), right(made, **options), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert torch.equal(call(made, **options), out)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.why.startswith("pytorch: q is on cpu")


def test_nothing_to_compute() -> None:
    for made in (tensors(0, 0), tensors(5, 4, keys=(0, 0))):
        out, lse = call(made, return_lse=True)
        assert out.shape == (len(made.q), 4, 16) and lse.shape == (4, len(made.q))
        assert not out.any() and lse.isneginf().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.ones(2, 3, 4, 32)}, "q has 4 axes, .*: give 3, packed tensors are"),
        ({"k": torch.ones(16, 2, 16)}, "head_dim of q is 32 and of k 16"),
        ({"v": torch.ones(15, 2, 32)}, "seqlen of k is 16 and of v 15"),
        ({"k": torch.ones(16, 3, 32), "v": torch.ones(16, 3, 32)}, "q has 4 heads, which is not"),
        ({"v": torch.ones(16, 2, 32).half()}, r"v is torch\.float16 and q is torch\.float32"),
        ({"cu_seqlens_q": [0, 16]}, r"cu_seqlens_q is a list: give a torch\.Tensor"),
        ({"cu_seqlens_q": starts(*SEQLENS).long()}, r"convert it, cu_seqlens_q\.int\(\)"),
        ({"cu_seqlens_k": starts(*SEQLENS)[None]}, r"cu_seqlens_k has shape \(1, 5\)"),
        ({"cu_seqlens_k": starts(*SEQLENS)[::2]}, "give one contiguous axis"),
        ({"cu_seqlens_k": starts(*SEQLENS).to("meta")}, "cu_seqlens_k is on meta and q is on cpu"),
        ({"cu_seqlens_k": starts(16)}, "cu_seqlens_q has 4 sequences and cu_seqlens_k 1"),
        ({"max_seqlen_q": -1}, "max_seqlen_q is -1: give the length of the longest"),
        ({"max_seqlen_k": 9.0}, r"max_seqlen_k is 9\.0: give the length"),
        ({"window": 3}, "window is 3 and causal is False"),
        ({"scale": float("nan")}, "scale is nan: give a finite number"),
    ],
)
def test_arguments_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    given = {**tensors()._asdict(), "max_seqlen_q": 9, "max_seqlen_k": 9, **changes}
    with pytest.raises(TunefaError, match=message):
        tunefa.flash_attention_varlen(**given)


# ------------------------------------------------------------------------------------------ plans


@pytest.fixture
def served(language: FakeLanguage, monkeypatch: pytest.MonkeyPatch) -> FakeLanguage:
    """What the fake language launches computes packed sequences, whatever their lengths."""

    def launch(
        kernel: Any, compiled: Any, tensors: Any, workload: Workload, config: Any, scale: float
    ) -> None:
        q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k = tensors
        assert workload.varlen
        problem = Packed(q, k, v, cu_seqlens_q, cu_seqlens_k, workload.causal, scale)
        for written, made in zip((out, lse), packed.attention(problem), strict=True):
            written.copy_(made)
        language.launched.append(config)

    def prepare(
        kernel: Any, compiled: Any, tensors: Any, workload: Any, config: Any, scale: float,
        softcap: float | None,
    ) -> Any:  # fmt: skip
        language.prepared.append(scale)

        class Launch:
            device_bytes = 0

            def __call__(self, *tensors: Tensor) -> None:
                launch(kernel, compiled, tensors, workload, config, scale)

        return Launch()

    monkeypatch.setattr(language, "prepare", prepare)
    return language


def plan_for(fresh: Runtime, made: PackedTensors, *options: Any) -> PackedKernelPlan:
    chosen = PackedOptions(*(options or (9, 9, True)))
    plan: PackedKernelPlan = fresh.planned(
        plan_key(made, chosen), lambda: PackedCall.of(made, chosen, None)
    )
    return plan


def test_a_kernel_runs_it(fresh: Runtime, served: FakeLanguage) -> None:
    made = tensors()
    plan = plan_for(fresh, made)
    assert plan.chosen.workload == Workload.parse("b4_h4_kv2_q16_d32_dv16_fp32_varlen")
    out, lse = plan.run(made, None)
    for mine, theirs in zip((out, lse), right(made, True), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert len(served.launched) == 1 and len(served.compiled) == 1


def test_rows_that_are_not_contiguous_are_copied(fresh: Runtime, served: FakeLanguage) -> None:
    made = tensors()
    strided = made._replace(q=torch.stack([made.q, made.q], -1)[..., 0])
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
        plan_for(fresh, tensors(9, 9, 9), 9, 9, True, 3),
    ]
    assert len({id(each) for each in [plan, *others]}) == 7


def test_what_is_refused_meets_no_plan_of_what_fits(fresh: Runtime, served: FakeLanguage) -> None:
    made = tensors()
    plan_for(fresh, made)
    for changes in (
        {"v": torch.ones(15, 2, 16)},
        {"cu_seqlens_k": starts(16)},
        {"cu_seqlens_q": made.cu_seqlens_q.long()},
        {"cu_seqlens_q": made.cu_seqlens_q.repeat_interleave(2)[::2]},
    ):
        with pytest.raises(TunefaError):
            plan_for(fresh, made._replace(**changes))


def test_a_scale_of_its_own_is_prepared_once(fresh: Runtime, served: FakeLanguage) -> None:
    made = tensors()
    plan = plan_for(fresh, made)
    for _ in range(2):
        out, _ = plan.run(made, 0.5)
        problem = Packed(*made, True, 0.5)
        torch.testing.assert_close(out, packed.attention(problem)[0])
    assert served.prepared == [32**-0.5, 0.5]


def test_without_keys_nothing_is_launched(fresh: Runtime, served: FakeLanguage) -> None:
    made = tensors(5, 4, keys=(0, 0))
    plan = plan_for(fresh, made)
    out, lse = plan.run(made, None)
    assert plan.chosen.why == "pytorch: a tensor is empty: there is nothing to compute"
    assert not out.any() and lse.isneginf().all() and not served.launched


# ----------------------------------------------------------------------- autograd, torch.compile


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": 3}])
def test_gradients(options: dict[str, Any]) -> None:
    made = tensors(5, 0, 9, 2, keys=(7, 3, 0, 2), dtype=torch.float64)
    leaves = [x.requires_grad_() for x in made[:3]]
    out, lse = call(made, return_lse=True, **options)
    seen = lse.isfinite()
    loss = out.sin().sum() + lse[seen].sin().sum()
    right_out, right_lse = right(made, **options)
    right_loss = right_out.sin().sum() + right_lse[seen].sin().sum()
    found = torch.autograd.grad(loss, leaves)
    for mine, theirs in zip(found, torch.autograd.grad(right_loss, leaves), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_op_is_sound() -> None:
    made = tensors(dtype=torch.float64)
    arguments = [*(x.requires_grad_() for x in made[:3]), *made[3:], 9, 9, True, None, None]
    assert varlen._through_op(made, PackedOptions(9, 9, True), None)[0].requires_grad
    torch.library.opcheck(torch.ops.tunefa.flash_attention_varlen.default, tuple(arguments))


def test_compiles_whole_with_any_lengths() -> None:
    def attend(made: PackedTensors, longest: int) -> Tensor:
        return tunefa.flash_attention_varlen(*made, longest, longest, causal=True)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=True)
    for seqlens in ((5, 0, 9, 2), (3, 12, 8), (20,)):
        made = tensors(*seqlens)
        torch.testing.assert_close(compiled(made, max(seqlens)), right(made, True)[0])
