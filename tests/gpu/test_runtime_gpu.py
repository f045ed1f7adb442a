"""`tunefa.flash_attention` on a CUDA device, held to the reference in fp64."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tunefa
from tunefa.compile import languages, provenance
from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.comparison import LSE_TOLERANCE, TOLERANCE
from tunefa.runtime import choose
from tunefa.runtime import process as runtime
from tunefa.runtime.call import heads_first
from tunefa.runtime.chip import Chip
from tunefa.runtime.process import Runtime
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload
from tunefa.store.record import Record
from tunefa.store.results import Store

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runtime:
    """A runtime of its own behind the public functions, and an empty user's store."""
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    made = Runtime()
    monkeypatch.setattr(runtime, "_RUNTIME", made)
    return made


def tensors(workload: Workload, layout: str = "bshd", poison: int = 0) -> tuple[Tensor, ...]:
    """q, k and v; with `poison`, that many rows and columns of NaN lie behind each head's."""
    torch.manual_seed(0)

    def normal(heads: int, seqlen: int, dim: int) -> Tensor:
        shape = [workload.batch, seqlen + poison, heads, dim + poison]
        if layout == "bhsd":
            shape[1], shape[2] = shape[2], shape[1]
        whole = torch.full(shape, math.nan, dtype=TYPES[workload.dtype], device="cuda")
        axis = 1 if layout == "bshd" else 2
        inner = whole.narrow(axis, 0, seqlen).narrow(3, 0, dim)
        return inner.normal_()

    return (
        normal(workload.heads, workload.seqlen_q, workload.head_dim),
        normal(workload.heads_kv, workload.seqlen_k, workload.head_dim),
        normal(workload.heads_kv, workload.seqlen_k, workload.head_dim_v),
    )


def exact(x: tuple[Tensor, ...], workload: Workload, layout: str, scale: float) -> Any:
    """(out, lse) in fp64, out heads first."""
    q, k, v = (heads_first(each, layout).double() for each in x)
    return reference.attention(
        AttentionInputs(q, k, v, workload.causal, scale, workload.window_left)
    )


def error(made: Tensor, right: Tensor) -> float:
    """||made - right|| / ||right||; NaN if there is one in `made`."""
    return float((made.double() - right).norm() / right.norm().clamp_min(1e-30))


def fill_free_memory_with_nan() -> None:
    """Fills memory that is allocated next with NaN: an element that no kernel writes shows."""
    pieces = [torch.full((2**20 * size,), math.nan, device="cuda") for size in (1, 1, 2, 4, 8, 16)]
    pieces += [torch.full((2**size,), math.nan, device="cuda") for size in range(5, 19)]
    del pieces


def run_and_judge(text: str, layout: str = "bshd", poison: int = 0, **options: Any) -> None:
    workload = Workload.parse(text)
    x = tensors(workload, layout, poison)
    scale = options.get("scale") or workload.head_dim**-0.5
    fill_free_memory_with_nan()
    q, k, v = x
    mask = {"causal": workload.causal, "window": workload.band}
    arguments: dict[str, Any] = {**mask, "layout": layout, **options}
    out, lse = tunefa.flash_attention(q, k, v, return_lse=True, **arguments)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.kernel != "pytorch", chosen
    assert chosen.workload == workload
    right, right_lse = exact(x, workload, layout, scale)
    assert out.is_contiguous() and out.dtype == q.dtype
    assert error(heads_first(out, layout), right) <= TOLERANCE[workload.dtype], chosen
    seen = right_lse.isfinite()
    assert torch.equal(lse.isneginf(), ~seen)
    assert float((lse - right_lse)[seen].abs().max()) <= LSE_TOLERANCE


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_dtypes_masks_layouts(dtype: str, mask: str, layout: str) -> None:
    run_and_judge(f"b2_h8_kv2_q300_k300_d64_{dtype}_{mask}", layout)


@pytest.mark.parametrize("head_dim", [16, 32, 40, 64, 72, 80, 96, 100, 128, 192, 256])
def test_head_dims(head_dim: int) -> None:
    mask = "causal" if head_dim % 32 else "full"
    run_and_judge(f"b1_h4_kv2_q257_k257_d{head_dim}_bf16_{mask}")


@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(64, 128), (192, 128), (128, 40)])
def test_another_head_dim_of_v(head_dim: int, head_dim_v: int) -> None:
    run_and_judge(f"b1_h4_kv2_q200_d{head_dim}_dv{head_dim_v}_bf16_causal")


@pytest.mark.parametrize("heads_kv", [1, 4, 8])
def test_groups(heads_kv: int) -> None:
    run_and_judge(f"b3_h8_kv{heads_kv}_q129_d128_bf16_causal")


@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k"), [(1, 1), (1, 1000), (17, 400), (130, 127), (400, 17), (512, 512)]
)
def test_lengths_and_rows_without_a_key(seqlen_q: int, seqlen_k: int, mask: str) -> None:
    run_and_judge(f"b2_h4_kv2_q{seqlen_q}_k{seqlen_k}_d64_bf16_{mask}")


@pytest.mark.parametrize("poison", [8, 16, 64])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_nothing_outside_the_tensors_is_read(layout: str, poison: int) -> None:
    run_and_judge("b2_h4_kv2_q100_k170_d64_bf16_causal", layout, poison)
    run_and_judge("b2_h4_kv2_q100_k170_d72_bf16_full", layout, poison)


def test_scales() -> None:
    run_and_judge("b1_h4_kv4_q128_d64_bf16_causal", scale=0.3)
    run_and_judge("b1_h4_kv4_q128_d64_bf16_causal", scale=1)
    workload = Workload.parse("b1_h4_kv4_q128_d64_bf16_causal")
    q, k, v = tensors(workload)
    for scale, why in ((0.0, "is not positive"), (-0.2, "is not positive"), (1e-36, "is below")):
        out = tunefa.flash_attention(q, k, v, causal=True, scale=scale)
        chosen = tunefa.last_choice()
        assert chosen is not None and chosen.kernel == "pytorch"
        assert f"scale {scale} {why}" in chosen.why
        right, _ = exact((q, k, v), workload, "bshd", scale)
        assert error(out.transpose(1, 2), right) <= TOLERANCE["bf16"]


def test_tensors_as_they_come() -> None:
    """Slices of one fused projection, an expanded K, columns first, an odd address."""
    fused = torch.randn(2, 160, 12, 64, dtype=torch.bfloat16, device="cuda")
    q, k, v = fused[:, :, :8], fused[:, :, 8:10], fused[:, :, 10:]
    expanded = k[:, :, :1].expand(-1, -1, 2, -1)
    columns = torch.randn(2, 160, 64, 2, dtype=torch.bfloat16, device="cuda").transpose(2, 3)
    odd = torch.randn(k.numel() + 1, dtype=torch.bfloat16, device="cuda")[1:].view(k.shape)
    for keys in (k, expanded, columns, odd):
        out = tunefa.flash_attention(q, keys, v, causal=True)
        chosen = tunefa.last_choice()
        assert chosen is not None and chosen.kernel != "pytorch"
        workload = Workload.parse("b2_h8_kv2_q160_d64_bf16_causal")
        right, _ = exact((q, keys, v), workload, "bshd", 64**-0.5)
        assert error(out.transpose(1, 2), right) <= TOLERANCE["bf16"], chosen


def test_what_no_kernel_serves_runs_in_pytorch() -> None:
    x = torch.randn(1, 8, 2, 8, device="cuda", dtype=torch.float64)
    assert tunefa.flash_attention(x, x, x).dtype == torch.float64
    assert "no kernel takes torch.float64" in str(tunefa.last_choice())
    tunefa.flash_attention(x.bfloat16(), x.bfloat16(), x.bfloat16())
    assert "head_dim 8 is below 16" in str(tunefa.last_choice())
    assert tunefa.flash_attention(x[:0], x[:0], x[:0]).shape == (0, 8, 2, 8)


# ------------------------------------------------------------------------------ lookup and plans

WORKLOAD = "b1_h8_kv2_q512_k512_d128_bf16_causal"


def store_record(tmp_path: Path, config: dict[str, Any]) -> None:
    chip = Chip.of(torch.device("cuda", torch.cuda.current_device()))
    assert chip.target is not None
    Store([tmp_path / "results"]).add(
        Record(
            kernel="attention_fwd_triton",
            arch=chip.target.arch.name,
            device=chip.name,
            workload=Workload.parse(WORKLOAD),
            config=config,
            objective="measured",
            median_us=1.0,
            tflops=1.0,
            resources=None,
            certificate=None,
            provenance=provenance.of(kernels.load("attention_fwd_triton")),
        )
    )


def test_exact_nearest_default(fresh: Runtime, tmp_path: Path) -> None:
    fresh.planner.records.roots = (tmp_path / "results",)  # without those that tunefa ships
    run_and_judge(WORKLOAD)
    first = tunefa.last_choice()
    assert first is not None and first.how == "default"
    target = Chip.of(torch.device("cuda", torch.cuda.current_device())).target
    assert target is not None
    case = Case(kernels.load("attention_fwd_triton"), Workload.parse(WORKLOAD), target)
    config = {**case.default(), "L2_SECTION_HEADS": 4}  # of which the model has no better opinion
    store_record(tmp_path, config)
    fresh._plans.clear()
    for workload, how in [
        (WORKLOAD, "exact"),
        (WORKLOAD.replace("k512", "k700"), "nearest"),
        (WORKLOAD.replace("causal", "full"), "default"),
    ]:
        run_and_judge(workload)
        chosen = tunefa.last_choice()
        assert chosen is not None and chosen.how == how
        assert (chosen.config == config) == (how != "default")


def test_a_known_shape_is_not_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(Workload.parse(WORKLOAD))
    out = tunefa.flash_attention(q, k, v, causal=True)

    def never(*arguments: Any, **options: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(choose, "choose", never)
    monkeypatch.setattr(languages.load("triton"), "compile", never)
    monkeypatch.setattr(kernels, "_load", never)
    assert torch.equal(tunefa.flash_attention(q, k, v, causal=True), out)
    assert torch.equal(tunefa.flash_attention(q.clone(), k, v, causal=True), out)


def test_host_time_of_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    q, k, v = tensors(Workload.parse("b1_h8_kv2_q64_k64_d64_bf16_causal"))
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    calls: dict[str, Callable[[], Tensor]] = {
        "flash_attention": lambda: tunefa.flash_attention(q, k, v, causal=True),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(
            heads[0], heads[1], heads[2], is_causal=True, enable_gqa=True
        ),
    }
    for name, call in calls.items():
        for _ in range(20):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(500):
            call()
        host_us = (time.perf_counter() - start) / 500 * 1e6
        torch.cuda.synchronize()
        with capsys.disabled():
            print(f"\nhost time of {name}: {host_us:.1f} us a call", end="")
        assert host_us < 1000
