"""tunefa/runtime/api.py with packed sequences: arguments, plans, autograd and torch.compile."""

from __future__ import annotations

import gc
import weakref
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.fake_kernel import FakeLanguage
from tests.support.packed_sequences import starts
from tunefa.compile.contract import LaunchSpec
from tunefa.errors import TunefaError
from tunefa.measure import reference
from tunefa.measure.attention_inputs import E4M3, AttentionInputs
from tunefa.runtime import ops
from tunefa.runtime.call import PACKED, Call, Options, Tensors, Window, plan_key
from tunefa.runtime.kernel_plan import KernelPlan
from tunefa.runtime.process import Runtime
from tunefa.spec.workload import Workload

SEQLENS = (5, 0, 9, 2)
MASKS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": True, "window": 3},
    {"window": (2, 1), "softcap": 1.5},
    {"window": (None, 2)},
    {"window": (2, None)},
]


def tensors(
    *seqlens: int, keys: tuple[int, ...] = (), dtype: torch.dtype = torch.float32
) -> Tensors:
    seqlens = seqlens or SEQLENS
    keys = keys or seqlens
    generator = torch.Generator().manual_seed(0)

    def normal(rows: int, heads: int, head_dim: int) -> Tensor:
        return torch.randn(rows, heads, head_dim, generator=generator, dtype=dtype)

    q, k, v = normal(sum(seqlens), 4, 32), normal(sum(keys), 2, 32), normal(sum(keys), 2, 16)
    return Tensors(q, k, v, (starts(*seqlens), starts(*keys)))


def flat(made: Tensors) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `flash_attention_varlen` takes them."""
    assert made.cu_seqlens is not None
    return made.q, made.k, made.v, *made.cu_seqlens


def changed(made: Tensors, **changes: Tensor) -> Tensors:
    """With some of the tensors exchanged, by `flash_attention_varlen`'s names."""
    names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
    q, k, v, starts_q, starts_k = {**dict(zip(names, flat(made), strict=True)), **changes}.values()
    return Tensors(q, k, v, (starts_q, starts_k))


def packed_options(*given: Any) -> Options:
    """Options with these max_seqlen_q, max_seqlen_k and mask, in their order."""
    max_seqlen_q, max_seqlen_k, *mask = given
    defaults: list[Any] = [False, None, None, None]
    causal, left, right, softcap = [*mask, *defaults[len(mask) :]]
    return Options(causal, left, right, PACKED, softcap, max_seqlen_q, max_seqlen_k)


def call(made: Tensors, **options: Any) -> Any:
    return tunefa.flash_attention_varlen(*flat(made), 9, 9, **options)


def inputs(made: Tensors, causal: bool, scale: float, *mask: Any) -> AttentionInputs:
    """The same for the reference; `mask` is window_left, window_right and softcap."""
    q, k, v, cu_seqlens, _ = made
    left, right, softcap = mask or (None, None, None)
    return AttentionInputs(q, k, v, causal, scale, left, right, softcap, (), cu_seqlens)


def right(
    made: Tensors, causal: bool = False, window: Window = None, softcap: float | None = None
) -> Any:
    one = Options.of(causal, window)
    mask = (one.window_left, one.window_right)
    return reference.attention(inputs(made, one.causal, 32**-0.5, *mask, softcap))


# -------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("options", MASKS)
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
        ({"window": (3, -1)}, r"window is \(3, -1\): give the number of keys"),
        ({"softcap": 0.0}, r"softcap is 0\.0: give a positive number"),
        ({"q": torch.ones(16, 4, 32).to(E4M3)}, r"q is torch\.float8_e4m3fn: packed sequences are"),
        ({"scale": float("nan")}, "scale is nan: give a finite number"),
    ],
)
def test_arguments_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
    made: dict[str, Any] = dict(zip(names, flat(tensors()), strict=True))
    given = {**made, "max_seqlen_q": 9, "max_seqlen_k": 9, **changes}
    with pytest.raises(TunefaError, match=message):
        tunefa.flash_attention_varlen(**given)


# ------------------------------------------------------------------------------------------ plans


@pytest.fixture
def served(language: FakeLanguage, monkeypatch: pytest.MonkeyPatch) -> FakeLanguage:
    """What the fake language launches computes packed sequences, whatever their lengths."""

    def launch(spec: LaunchSpec, tensors: Any) -> None:
        workload, scale, softcap = spec.case.workload, spec.scale, spec.softcap
        q, k, v, out, lse, *cu_seqlens = tensors
        assert workload.varlen and workload.softcap == (softcap is not None)
        mask = (workload.window_left, workload.window_right)
        given = inputs(Tensors(q, k, v, tuple(cu_seqlens)), workload.causal, scale, *mask, softcap)
        for written, made in zip((out, lse), reference.attention(given), strict=True):
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


# ----------------------------------------------------------------------- autograd, torch.compile


@pytest.mark.parametrize("options", MASKS)
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


@pytest.mark.parametrize(
    ("options", "serves"),
    [
        ({}, True),
        ({"causal": True, "window": 3}, True),
        ({"window": (2, 0)}, True),
        ({"window": (2, 1)}, False),
        ({"window": (None, 1)}, False),
        ({"window": (2, None)}, False),
        ({"causal": True, "softcap": 1.5}, False),
    ],
)
def test_flash_gradients_only_of_what_it_knows(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], serves: bool
) -> None:
    """Where the device and the tensors are such as it serves."""
    taken: list[Call] = []

    def gradients(call: Call, out: Tensor, lse: Tensor, grad: Tensor) -> Any:
        taken.append(call)
        return reference.gradients(call, out, lse, grad)

    monkeypatch.setattr(ops, "flash_serves", lambda q, v, scale: True)
    monkeypatch.setattr(ops, "_flash_gradients", gradients)
    made = tensors()
    call(changed(made, q=made.q.requires_grad_()), **options).sum().backward()
    assert bool(taken) == serves


@pytest.mark.parametrize(
    "options", [packed_options(9, 9, True), packed_options(9, 9, False, 2, 2, 1.5)]
)
def test_the_op_is_sound(options: Options) -> None:
    made = tensors(dtype=torch.float64)
    for x in made[:3]:
        x.requires_grad_()
    assert ops.flash_attention(made, options, None)[0].requires_grad
    arguments = (*flat(made), None, None, None, *options, None)
    torch.library.opcheck(torch.ops.tunefa.flash_attention.default, arguments)


@pytest.mark.parametrize("options", [{"causal": True}, *MASKS[2:4]])
def test_compiles_whole_with_any_lengths(options: dict[str, Any]) -> None:
    def attend(made: Tensors, longest: int) -> Tensor:
        out: Tensor = tunefa.flash_attention_varlen(*flat(made), longest, longest, **options)
        return out

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=True)
    for seqlens in ((5, 0, 9, 2), (3, 12, 8), (20,)):
        made = tensors(*seqlens)
        torch.testing.assert_close(compiled(made, max(seqlens)), right(made, **options)[0])
