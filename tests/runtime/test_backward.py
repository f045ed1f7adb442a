"""tunefa/runtime/backward.py: what computes gradients, by a kernel, a library or PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support import library_kernel
from tests.support.fake_kernel import H200, FakeKernel, FakeLanguage
from tests.support.own_kernels import OwnKernels
from tests.support.sample_records import dated, measured
from tunefa.compile import languages
from tunefa.compile.contract import Compiled, LaunchSpec
from tunefa.compile.languages import library
from tunefa.errors import TunefaError
from tunefa.measure import gradients as formulas
from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.gradients import Gradients
from tunefa.runtime import backward
from tunefa.runtime.backward import KernelGradients, LibraryGradients, PyTorchGradients
from tunefa.runtime.call import Call, Options, Tensors, heads_first
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.process import Runtime
from tunefa.store import results as store

OWN, TODAY = "attention_bwd_own", "2026-11-22T00:00:00Z"


class Backward(FakeLanguage):
    """A language whose launches compute gradients by the formulas."""

    def launch(self, spec: LaunchSpec, compiled: Compiled, tensors: Any) -> None:
        q, k, v, out, lse, dout, dlse, dq, dk, dv, *starts = tensors
        w = spec.workload
        assert w.op == "bwd" and lse.is_contiguous()
        assert all(x.stride(-1) == 1 for x in (q, k, v, out, dout, dq, dk, dv))
        mask = w.window_left, w.window_right, spec.softcap
        inputs = AttentionInputs(q, k, v, w.causal, spec.scale, *mask, (), tuple(starts) or None)
        made = formulas.gradients(inputs, out, lse, dout, dlse)
        for grad, right in zip((dq, dk, dv), made, strict=True):
            grad.copy_(right)
        self.launched.append({"deterministic": w.deterministic})


@pytest.fixture
def own(fresh: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backward]:
    """CPU tensors pass for those of an H200, with a kernel of gradients in this language."""
    language, device = Backward(), torch.ones(1).get_device()
    real = languages.load
    monkeypatch.setattr(languages, "load", lambda name: language if name == "fake" else real(name))
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: device, raising=False)
    fresh.planner.devices[torch.device("cpu")] = (H200, Compiler())
    kernel: Any = FakeKernel(OWN, op="bwd")
    fresh.planner.kernels = (kernel,)
    yield language


@pytest.fixture
def lib(own: Backward, fresh: Runtime, own_kernels: OwnKernels, tmp_path: Path) -> Any:
    """A kernel of a library, the only one there is."""
    kernel = library_kernel.add(own_kernels, f"lib_{tmp_path.name}")
    fresh.planner.kernels = (kernel,)
    return kernel


def inputs(layout: str = "bshd", dtype: torch.dtype = torch.float32, heads: int = 2) -> Tensors:
    q, k, v = (torch.randn(2, 20, n, 16, dtype=dtype) for n in (2, heads, heads))
    if layout == "bhsd":
        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    return Tensors(q, k, v)


def given_for(
    tensors: Tensors, options: Options, dlse: bool = False, scale: float | None = None
) -> Gradients:
    """The results of the forward pass with this scale, and normal gradients of them."""
    out, lse = reference.attention(Call.of(tensors, options, scale))
    out = heads_first(out, options.layout).to(tensors.q.dtype).contiguous()
    return Gradients(out, lse, torch.randn_like(out), torch.randn_like(lse) if dlse else None)


def right_for(tensors: Tensors, options: Options, given: Gradients, scale: float | None) -> Any:
    call = Call.of(tensors, options, scale)
    out, grad = (heads_first(x, options.layout) for x in (given.out, given.grad_out))
    made = formulas.gradients(call, out, given.lse, grad, given.grad_lse)
    return [heads_first(x, options.layout).to(tensors.q.dtype) for x in made]


def check(plan: Any, tensors: Tensors, options: Options, given: Gradients, **how: Any) -> None:
    """Compares a plan's gradients, and their strides."""
    scale = how.get("scale")
    made = plan.gradients(tensors, given, scale)
    rights = right_for(tensors, options, given, scale)
    for grad, right, x in zip(made, rights, (tensors.q, tensors.k, tensors.v), strict=True):
        torch.testing.assert_close(grad, right, rtol=1e-4, atol=1e-5)
        assert grad.stride() == torch.empty_like(x).stride() and grad.dtype == x.dtype


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("dlse", [False, True])
def test_a_kernel_computes_what_the_formulas_do(
    fresh: Runtime, own: Backward, layout: str, dlse: bool
) -> None:
    tensors, options = inputs(layout), Options(True, layout=layout, softcap=5.0)
    given = given_for(tensors, options, dlse)
    plan = fresh.backward_plan(tensors, options, given)
    assert isinstance(plan, KernelGradients) and plan.chosen.kernel == OWN
    assert plan.chosen.workload is not None and plan.chosen.workload.op == "bwd"
    check(plan, tensors, options, given)
    for _ in range(2):
        check(plan, tensors, options, given_for(tensors, options, dlse, 0.5), scale=0.5)
    assert own.prepared == [0.25, 0.5] and len(own.launched) == 3
    assert fresh.backward_plan(tensors, options, given) is plan


def test_packed_sequences_and_rows_that_are_not_contiguous(fresh: Runtime, own: Backward) -> None:
    starts = torch.tensor([0, 5, 12], dtype=torch.int32)
    q, k, v = (torch.randn(16, 12, 2).transpose(0, 1).transpose(1, 2) for _ in "qkv")
    tensors = Tensors(q, k, v, (starts, starts))
    assert q.stride(-1) != 1
    options = Options(True, layout="thd", max_seqlen_q=7, max_seqlen_k=7)
    given = given_for(tensors, options, dlse=True)
    plan = fresh.backward_plan(tensors, options, given)
    assert isinstance(plan, KernelGradients)
    check(plan, tensors, options, given)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_a_library_computes_what_the_formulas_do(fresh: Runtime, lib: Any, layout: str) -> None:
    tensors, options = inputs(layout), Options(True, layout=layout)
    given = given_for(tensors, options)
    plan = fresh.backward_plan(tensors, options, given)
    assert isinstance(plan, LibraryGradients) and plan.chosen.kernel == lib.name
    assert plan.chosen.config == {} and plan.chosen.how == "default"
    check(plan, tensors, options, given)
    check(plan, tensors, options, given_for(tensors, options, scale=0.5), scale=0.5)


def test_what_a_library_does_not_serve_is_left_to_others(
    fresh: Runtime, own: Backward, lib: Any
) -> None:
    kernel: Any = FakeKernel(OWN, op="bwd")
    tensors, plain = inputs(), Options(True)
    with_dlse = given_for(tensors, plain, dlse=True)
    made = fresh.backward_plan(tensors, plain, with_dlse)
    assert made.chosen.kernel == "pytorch" and "no gradient of the logsumexp" in made.chosen.why
    check(made, tensors, plain, with_dlse)
    fresh.planner.kernels = (lib, kernel)
    fresh._backward_plans.clear()
    grouped = inputs(heads=1)
    for x, options, dlse, ran in (
        (tensors, plain, True, OWN),
        (grouped, plain, False, OWN),
        (tensors, plain._replace(deterministic=True), False, OWN),
    ):
        given = given_for(x, options, dlse)
        plan = fresh.backward_plan(x, options, given)
        assert plan.chosen.kernel == ran
        check(plan, x, options, given)
    assert own.launched[-1] == {"deterministic": True}


def test_a_record_says_that_a_library_is_the_fastest(
    fresh: Runtime, own: Backward, lib: Any, tmp_path: Path
) -> None:
    kernel: Any = FakeKernel(OWN, op="bwd")
    fresh.planner.kernels = (kernel, lib)
    tensors, options = inputs(), Options(True)
    given = given_for(tensors, options)
    assert fresh.backward_plan(tensors, options, given).chosen.kernel == OWN
    provenance = dated(TODAY, **library.versions_of(lib), source_hash=lib.source_hash)
    workload = "bwd_b2_h2_kv2_q20_k20_d16_fp32_causal"
    record = measured(workload, kernel=lib.name, config={}, provenance=provenance)
    store.write(tmp_path / "records.yaml", [record])
    fresh.load(tmp_path / "records.yaml")
    chosen = fresh.backward_plan(tensors, options, given).chosen
    assert (chosen.kernel, chosen.how) == (lib.name, "exact")
    fresh.leave_out_libraries()
    assert fresh.backward_plan(tensors, options, given).chosen.kernel == OWN


def test_the_key_tells_apart_what_a_launch_depends_on(fresh: Runtime, own: Backward) -> None:
    tensors, options = inputs(), Options(True)
    given = given_for(tensors, options)
    wide = torch.randn(2, 20, 2, 32)[..., :16]
    others = [
        Gradients(given.out, given.lse, wide, None),
        Gradients(given.out, given.lse, given.grad_out, given.lse),
        Gradients(given.out, given.lse, torch.randn(1281)[1:].view(2, 20, 2, 16), None),
    ]
    keys = [backward.key(tensors, options, each) for each in (given, *others)]
    keys.append(backward.key(tensors, options._replace(deterministic=True), given))
    assert len(set(keys)) == 5
    again = given_for(tensors, options)
    assert backward.key(tensors, options, again) == keys[0]


def test_gradients_that_a_kernel_cannot_read_are_copied() -> None:
    out, lse = torch.randn(2, 20, 2, 16), torch.randn(2, 20, 2).transpose(1, 2)
    for grad in (torch.ones(()).expand(out.shape), torch.randn(2, 20, 16, 2).transpose(2, 3)):
        made = backward.as_kernels_take_it(Gradients(out, lse, grad, None))
        assert made.out is out and made.lse.is_contiguous()
        assert torch.equal(made.grad_out, grad) and made.grad_out.is_contiguous()
    strided = torch.randn(2, 2, 20, 16).transpose(1, 2)
    assert backward.as_kernels_take_it(Gradients(out, lse, strided, None)).grad_out is strided


def test_nothing_grows_over_changing_lengths(
    fresh: Runtime, own: Backward, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh._backward_plans._size = 4
    for length in range(1, 12):
        q = torch.randn(1, length, 2, 16)
        tensors = Tensors(q, q.clone(), q.clone())
        given = given_for(tensors, Options(True))
        fresh.backward_plan(tensors, Options(True), given)
    assert len(fresh._backward_plans) <= 4


@pytest.mark.parametrize("with_record", [False, True])
def test_a_lock_file_without_gradients_leaves_them_to_pytorch(
    fresh: Runtime, lib: Any, tmp_path: Path, with_record: bool
) -> None:
    made = dated(TODAY, **library.versions_of(lib), source_hash=lib.source_hash)
    locked = [measured("fwd_q4096")]
    if with_record:
        workload = "bwd_b2_h2_kv2_q20_k20_d16_fp32_causal"
        locked.append(measured(workload, kernel=lib.name, config={}, provenance=made))
    store.write(tmp_path / "lock.yaml", locked)
    fresh.load(tmp_path / "lock.yaml", frozen=True)
    tensors, options = inputs(), Options(True)
    given = given_for(tensors, options)
    plan = fresh.backward_plan(tensors, options, given)
    check(plan, tensors, options, given)
    if not with_record:
        assert isinstance(plan, PyTorchGradients) and "no record of gradients" in plan.chosen.why
        return
    assert (plan.chosen.kernel, plan.chosen.how) == (lib.name, "exact")
    with pytest.raises(TunefaError, match="takes no gradient of the logsumexp"):
        fresh.backward_plan(tensors, options, given_for(tensors, options, dlse=True))
    full = "bwd_b2_h2_kv2_q20_k20_d16_fp32_full"
    with pytest.raises(TunefaError, match=f"has no record measured for {full}"):
        fresh.backward_plan(tensors, Options(), given_for(tensors, Options()))


def test_what_computed_the_last_gradients_is_said(fresh: Runtime) -> None:
    assert tunefa.last_choice(backward=True) is None
    q, k, v = (x.requires_grad_() for x in inputs()[:3])
    torch.autograd.grad(tunefa.flash_attention(q, k, v, causal=True).sum(), (q, k, v))
    last = tunefa.last_choice(backward=True)
    assert last is not None and last.kernel == "pytorch" and "on cpu" in last.why


def test_pytorch_s_flag_makes_gradients_deterministic(
    fresh: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    kept = PyTorchGradients.gradients

    def gradients(self: PyTorchGradients, *given: Any) -> Any:
        seen.append(self.options.deterministic)
        return kept(self, *given)

    monkeypatch.setattr(PyTorchGradients, "gradients", gradients)

    def step(**options: Any) -> list[Tensor]:
        torch.manual_seed(0)
        q, k, v = (x.requires_grad_() for x in inputs()[:3])
        out = tunefa.flash_attention(q, k, v, **options)
        return list(torch.autograd.grad(out.sum(), (q, k, v)))

    plain = step()
    torch.use_deterministic_algorithms(True)
    try:
        again = step()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, plain, again))
    step(deterministic=True)
    assert seen == [False, True, True]
    with pytest.raises(TunefaError, match="deterministic is 1: give True or False"):
        tunefa.flash_attention(*inputs()[:3], deterministic=1)  # type: ignore[call-overload]
