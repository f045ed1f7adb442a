"""tunefa/runtime/library_plan.py: a call that an installed library computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support import library_kernel
from tests.support.fake_kernel import H200, FakeKernel
from tests.support.own_kernels import OwnKernels
from tunefa.measure import reference
from tunefa.runtime.call import Call, Options, Tensors, heads_first
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.library_plan import LibraryPlan
from tunefa.runtime.process import Runtime


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_a_library_computes_what_the_reference_does(
    fresh: Runtime, own_kernels: OwnKernels, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    device = torch.ones(1).get_device()
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: device, raising=False)
    fresh.planner.devices[torch.device("cpu")] = (H200, Compiler())
    kernel: Any = library_kernel.add_forward(own_kernels, f"lib_forward_{layout}")
    gradients: Any = FakeKernel("attention_bwd_fake", op="bwd")
    fresh.planner.kernels = (gradients, kernel)
    q, k, v = (torch.randn(2, 20, 2, 16) for _ in "qkv")
    if layout == "bhsd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    tensors, options = Tensors(q, k, v), Options(True, layout=layout)
    plan = fresh.plan(tensors, options)
    assert isinstance(plan, LibraryPlan) and plan.chosen.kernel == kernel.name
    for scale in (None, 0.5):
        out, lse = plan.run(tensors, scale)
        right, right_lse = reference.attention(Call.of(tensors, options, scale))
        torch.testing.assert_close(out, heads_first(right, layout))
        torch.testing.assert_close(lse, right_lse)
        assert out.is_contiguous() and lse.is_contiguous()
        assert torch.equal(plan.output(tensors, scale), out)
    fresh.leave_out_libraries()
    assert fresh.plan(tensors, options).chosen.kernel == "pytorch"
