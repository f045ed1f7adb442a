"""The kernels that call libraries: that PyTorch's operators take their arguments, and the shapes of
what they return, on tensors without data."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from tunefa.compile.contract import LaunchSpec
from tunefa.compile.languages.library import OUTPUTS
from tunefa.measure import check
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

LIBRARIES = [each for each in map(kernels.load, kernels.names()) if each.is_library]
LONG = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
OF_PYTORCH = [
    each for each in LIBRARIES if "PyTorch" in each.module.LIBRARY and each.op in ("fwd", "bwd")
]
every = pytest.mark.parametrize("kernel", OF_PYTORCH, ids=lambda kernel: str(kernel.name))
WORKLOADS = [
    "b2_h4_kv2_q70_k90_d64_bf16_full",
    "b2_h4_kv2_q90_k90_d128_fp16_causal",
    "b2_h4_kv2_q90_k70_d128_bf16_causal",
    "b2_h4_q90_d128_bf16_causal_w20",
    "b2_h4_kv1_q70_k90_d80_bf16_causal_varlen",
    "b2_h4_q90_d64_bf16_causal",
    "b2_h4_q70_k90_d80_fp32_full",
]


def tensors(workload: Workload) -> tuple[Any, ...]:
    """The tensors of a launch, without data; those of packed sequences have 90 rows and keys."""
    w, dtype = workload, getattr(torch, LONG[workload.dtype])

    def made(rows: int, heads: int, head_dim: int) -> Any:
        if w.varlen:
            return torch.empty(90, heads, head_dim, dtype=dtype, device="meta")
        shape = w.batch, rows, heads, head_dim
        return torch.empty(shape, dtype=dtype, device="meta").transpose(1, 2)

    q, out = (made(w.seqlen_q, w.heads, w.head_dim) for _ in range(2))
    k, v = (made(w.seqlen_k, w.heads_kv, w.head_dim) for _ in range(2))
    shape = (w.heads, 90) if w.varlen else (w.batch, w.heads, w.seqlen_q)
    lse = torch.empty(shape, device="meta")
    starts = [torch.empty(w.batch + 1, dtype=torch.int32, device="meta") for _ in range(2)]
    more = starts if w.varlen else []
    if w.op == "fwd":
        return q, k, v, out, lse, *more
    return q, k, v, out, lse, torch.empty_like(out), lse, q, k, v, *more


@every
def test_operators_take_their_arguments(kernel: Kernel) -> None:
    served = 0
    for text in WORKLOADS:
        workload = Workload.parse(f"{kernel.op}_{text}")
        case = Case(kernel, workload, Target.named("sm90"))
        if case.why_not() is not None:
            continue
        served += 1
        given = tensors(workload)
        spec = LaunchSpec(case, {}, 0.1, check.softcap(workload))
        results = kernel.module.run(given, spec)
        wanted = given[OUTPUTS[kernel.op]]
        if workload.varlen and kernel.op == "fwd":
            results, wanted = results[:1], wanted[:1]  # what has no data has another lse there
        assert [x.shape for x in results] == [x.shape for x in wanted], workload
        assert [x.dtype for x in results] == [x.dtype for x in wanted], workload
    assert served >= 2


def test_a_deterministic_call_leaves_pytorch_s_flags_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, seen = kernels.load("attention_bwd_fa2"), []
    shared = sys.modules[kernel.module.run.__module__]
    window = shared._window

    def noted(workload: Workload) -> Any:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return window(workload)

    monkeypatch.setattr(shared, "_window", noted)
    for text in ("bwd_b2_h4_q90_d64", "bwd_b2_h4_q90_d64_deterministic"):
        workload = Workload.parse(text)
        spec = LaunchSpec(Case(kernel, workload, Target.named("sm90")), {}, 0.1)
        kernel.module.run(tensors(workload), spec)
        assert not torch.are_deterministic_algorithms_enabled()
        memory: Any = torch.utils.deterministic
        assert memory.fill_uninitialized_memory
    assert seen == [False, True]


@pytest.mark.parametrize(
    ("workload", "arch", "says"),
    [
        ("bwd_q64_k90", "sm90", "aligned to the top left"),
        ("bwd_q64_deterministic", "sm90", "not deterministic"),
        ("bwd_q64_d256", "sm89", "up to 128, and up to 256 on sm90"),
        ("bwd_q64_d256", "sm90", None),
        ("bwd_q64_fp32", "sm90", "bf16 and fp16 only"),
        ("bwd_q64_w8", "sm90", "sliding windows"),
    ],
)
def test_cudnn_says_what_it_does_not_serve(workload: str, arch: str, says: str | None) -> None:
    why = kernels.load("attention_bwd_cudnn").why_not(Workload.parse(workload), archs.load(arch))
    assert why is None if says is None else says in str(why)


@pytest.mark.parametrize("op", ["fwd", "bwd"])
@pytest.mark.parametrize(
    ("workload", "says"),
    [
        ("h4_q64_k90", "aligned to the top left"),
        ("h4_q64_k90_full", None),
        ("h4_kv2_q64", "as many KV heads"),
        ("h4_q64_w8", "sliding windows"),
        ("h4_q64_varlen", "packed sequences"),
        ("h4_q64_d256_fp32", None),
        ("h4_q64_d36_fp32", None),
        ("h4_q64_d36", "multiples of 16 bytes"),
    ],
)
def test_memory_efficient_attention_says_what_it_does_not_serve(
    op: str, workload: str, says: str | None
) -> None:
    kernel, asked = kernels.load(f"attention_{op}_efficient"), Workload.parse(f"{op}_{workload}")
    why = kernel.why_not(asked, archs.load("sm80"))
    assert why is None if says is None else says in str(why)


def test_memory_efficient_attention_comes_last() -> None:
    """It is there for what no other kernel serves, and to compete on a device."""
    for arch in map(archs.load, ("sm80", "sm89", "sm90", "sm120")):
        for op in ("fwd", "bwd"):
            own = [each for each in map(kernels.load, kernels.names()) if each.op == op]
            last = max(own, key=lambda each: each.priority(Workload.parse(f"{op}_q1"), arch))
            assert last.name == f"attention_{op}_efficient"


def test_on_hopper_cudnn_comes_before_flash_attention_2_and_elsewhere_behind() -> None:
    cudnn, flash = (kernels.load(f"attention_bwd_{name}") for name in ("cudnn", "fa2"))
    for arch, first in (("sm90", cudnn), ("sm100", cudnn), ("sm80", flash), ("sm89", flash)):
        asked = Workload.parse("bwd_q1024"), archs.load(arch)
        assert (cudnn.priority(*asked) < flash.priority(*asked)) is (first is cudnn), arch


def test_memory_efficient_attention_gets_whole_rows_of_the_logsumexp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, seen = kernels.load("attention_bwd_efficient"), list[torch.Tensor]()
    workload = Workload.parse("bwd_b2_h4_q90_d64")
    given = list(tensors(workload))
    given[4] = torch.arange(2 * 4 * 90, dtype=torch.float32).view(2, 4, 90)

    def backward(*x: Any, scale: float) -> Any:
        seen.append(x[6])
        return *x[1:4], None

    packet = torch.ops.aten._scaled_dot_product_efficient_attention_backward
    monkeypatch.setattr(packet, "default", backward)
    spec = LaunchSpec(Case(kernel, workload, Target.named("sm90")), {}, 0.1)
    assert len(kernel.module.run(given, spec)) == 3
    [lse] = seen
    assert lse.shape == (2, 4, 96) and lse.is_contiguous()
    assert torch.equal(lse[..., :90], given[4]) and lse[..., 90:].isposinf().all()


def test_flash_attn_4_is_called_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, called = kernels.load("attention_bwd_fa4"), []
    if importlib.util.find_spec("flash_attn") is None:
        assert kernel.module.version() is None
    workload = Workload.parse("bwd_b2_h4_kv2_q64_d64")
    given = tensors(workload)

    def backward(*x: Any, softmax_scale: float, causal: bool) -> tuple[Any, ...]:
        called.append((softmax_scale, causal, [each.shape for each in x]))
        return *(each.clone() for each in x[:3]), "something else"

    package, cute = ModuleType("flash_attn"), ModuleType("flash_attn.cute")
    interface: Any = ModuleType("flash_attn.cute.interface")
    interface._flash_attn_bwd = backward
    cute.interface = interface  # type: ignore[attr-defined]
    for module in (package, cute, interface):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = LaunchSpec(Case(kernel, workload, Target.named("sm90")), {}, 0.1)
    results = kernel.module.run(given, spec)
    assert [each.shape for each in results] == [each.shape for each in given[:3]]
    rows = (2, 64, 4, 64)
    assert called == [(0.1, True, [rows, (2, 64, 2, 64), (2, 64, 2, 64), rows, rows, (2, 4, 64)])]


def test_what_libraries_read_is_copied_only_where_it_must_be() -> None:
    assert LIBRARIES[0].module
    readable = importlib.import_module("tunefa.kernels.library.tensors").readable
    x = torch.randn(2, 4, 6, 16, dtype=torch.bfloat16)
    for kept in (x, x.transpose(1, 2), x[:, :2], x[:, :, :1].expand(2, 4, 1, 16)):
        assert readable(kept) is kept
    odd = torch.randn(2 * 4 * 6 * 16 + 1, dtype=torch.bfloat16)[1:].view(2, 4, 6, 16)
    narrow = torch.randn(2, 4, 6, 20, dtype=torch.bfloat16)[..., :16]
    for copied in (odd, narrow, x.mT, x[:, :1].expand(2, 4, 6, 16)):
        made = readable(copied)
        assert made is not copied and torch.equal(made, copied) and made.stride(-1) == 1
