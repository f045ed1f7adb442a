"""tunefa/runtime/decode.py: calls with batch_invariant=False: what they look up, and what may run
them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tunefa
from tests.support import library_kernel
from tests.support.cache_calls import expected, made
from tests.support.fake_kernel import H200
from tests.support.own_kernels import OwnKernels
from tests.support.sample_records import measured
from tunefa.compile import provenance
from tunefa.errors import TunefaError
from tunefa.runtime import decode_call
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.decode_call import CacheCall, CacheOptions, CacheTensors
from tunefa.runtime.decode_plan import CachePlan, Decode, LibraryCachePlan
from tunefa.runtime.process import Runtime
from tunefa.spec.kernel import Kernel

FREE = CacheOptions(batch_invariant=False)


def call(layout: str = "bshd") -> CacheTensors:
    """A call in bf16; NaN lies behind the lengths."""
    given = made(dtype=torch.bfloat16)
    if layout == "bhsd":
        given |= {name: given[name].transpose(1, 2) for name in ("q", "k_cache", "v_cache")}
    return CacheTensors(*given.values())


@pytest.fixture
def library(
    fresh: Runtime, own_kernels: OwnKernels, monkeypatch: pytest.MonkeyPatch, request: Any
) -> Kernel:
    """A library that is the only kernel over a cache; CPU tensors pass for a device's."""
    device = torch.ones(1).get_device()
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: device, raising=False)
    fresh.planner.devices[torch.device("cpu")] = (H200, Compiler())
    kernel = library_kernel.add_decode(own_kernels, re.sub(r"\W", "_", f"lib_{request.node.name}"))
    fresh.planner.kernels = (kernel,)
    return kernel


def planned(
    runtime: Runtime, options: CacheOptions, given: CacheTensors | None = None
) -> CachePlan:
    return runtime.caches.plan(given or call(options.layout), options, None)


def test_the_config_is_that_for_the_call_s_own_batch_and_cache() -> None:
    asked = Decode(CacheCall.of(call(), FREE, None), None).asked()
    assert (asked.batch, asked.seqlen_k, asked.batchvariant) == (3, 40, True)
    usual = Decode(CacheCall.of(call(), CacheOptions(), None), None).asked()
    assert (usual.batch, usual.seqlen_k, usual.batchvariant) == (16, 8192, False)
    assert decode_call.key(call(), FREE, None) != decode_call.key(call(), CacheOptions(), None)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_a_library_computes_it_where_bits_may_depend_on_the_batch(
    fresh: Runtime, library: Kernel, layout: str
) -> None:
    given, options = call(layout), FREE._replace(layout=layout)
    plan = planned(fresh, options)
    assert isinstance(plan, LibraryCachePlan) and plan.chosen.kernel == library.name
    right, right_lse = expected(made(dtype=torch.bfloat16))
    wanted = right.transpose(1, 2) if layout == "bhsd" else right
    out, lse = plan.run(given, None, None)
    torch.testing.assert_close(out, wanted, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, right_lse.float(), atol=2e-2, rtol=2e-2)
    assert out.is_contiguous() and lse.is_contiguous() and plan.device_bytes == 0
    mine = torch.empty_like(out)
    assert plan.output(given, None, mine) is mine and torch.equal(mine, out)
    flat = plan.output(given, 1e-9, None)
    assert not torch.allclose(flat, out, atol=1e-2), "the scale of the call is used"


def test_no_library_computes_it_otherwise(fresh: Runtime, library: Kernel) -> None:
    plan = planned(fresh, CacheOptions())
    assert plan.chosen.how == "pytorch" and "its bits depend on the batch" in plan.chosen.why
    fresh.leave_out_libraries()
    assert planned(fresh, FREE).chosen.how == "pytorch"


def test_a_cache_that_the_library_does_not_read_is_left_to_others(
    fresh: Runtime, library: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library.module, "is_aligned", lambda tensors: False)
    plan = planned(fresh, FREE)
    assert plan.chosen.how == "pytorch" and "its cache is not aligned" in plan.chosen.why


def test_a_record_of_a_library_is_for_calls_without_batch_invariance(
    fresh: Runtime, library: Kernel
) -> None:
    words = "decode_b3_h4_kv2_q1_k40_d16_bf16_batchvariant"
    made_here = provenance.of(library)
    record = measured(words, kernel=library.name, config={}, provenance=made_here)
    fresh.planner.records.loaded = [record]
    assert planned(fresh, FREE).chosen.how == "exact"
    assert planned(fresh, CacheOptions()).chosen.how == "pytorch"


def test_plans_are_not_shared_by_a_family(fresh: Runtime, library: Kernel) -> None:
    plans = [planned(fresh, FREE, call()._replace(k=k, v=k)) for k in map(cache, (40, 50))]
    sizes = [plan.chosen.workload.seqlen_k for plan in plans if plan.chosen.workload]
    assert sizes == [40, 50] and not fresh.planner._cache_choices


def cache(keys: int) -> torch.Tensor:
    return torch.randn(3, keys, 2, 16, dtype=torch.bfloat16)


def test_the_argument_is_true_or_false() -> None:
    with pytest.raises(TunefaError, match="batch_invariant is 0: give True or False"):
        tunefa.decode_attention(**made(), batch_invariant=0)  # type: ignore[call-overload]


def test_on_the_cpu_the_result_is_the_same_and_compiled_calls_have_the_argument() -> None:
    given = made()
    right = tunefa.decode_attention(**given)
    assert torch.equal(tunefa.decode_attention(**given, batch_invariant=False), right)
    seen: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        seen.extend(node for node in graph.graph.nodes if "decode_attention" in str(node.target))
        return graph.forward

    def step(**more: Any) -> Any:
        return tunefa.decode_attention(**more, batch_invariant=False)

    torch.compile(step, fullgraph=True, backend=backend)(**given)
    assert len(seen) == 1 and seen[0].args[-2] is False
