"""Numerics of attention kernels on the device that is there, launched as a search launches them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tunefa.compile import languages
from tunefa.compile import pool as compile_pool
from tunefa.compile.contract import LaunchSpec
from tunefa.measure import check
from tunefa.measure.comparison import Comparison
from tunefa.spec import kernel as kernels
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu

KERNEL = kernels.load("attention_fwd_triton")
DEVICE = "cuda"
NAMES = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "USE_TMA", "maxnreg", "L2_SECTION_HEADS",
         "PACK_GQA")  # fmt: skip
CONFIGS: list[dict[str, Any]] = [
    dict(zip(NAMES, values, strict=True))
    for values in (
        (64, 64, 4, 2, "pointer", 0, 1, 0),
        (64, 64, 4, 3, "tma", 0, 1, 1),
        (128, 128, 8, 2, "tma", 0, 4, 0),
        (128, 64, 8, 3, "pointer", 168, 1, 1),
        (16, 32, 1, 4, "pointer", 0, 16, 0),
        (256, 32, 16, 2, "tma", 0, 1, 0),
        (32, 16, 2, 5, "tma", 96, 1, 1),
        (64, 128, 4, 1, "tma", 0, 4, 1),
        (64, 256, 4, 1, "pointer", 0, 1, 0),
    )
]

WORKLOADS = [
    # Head dimensions, padded and not, and dtypes.
    *(f"h4_kv2_q300_d{d}_{dtype}_causal" for d in (16, 64, 80, 96, 128, 160, 256)
      for dtype in ("bf16", "fp16", "fp32")),
    # Without a mask; tails of either length; a length that tiles divide.
    *(f"b2_h4_kv4_q{q}_k{k}_d64_bf16_full"
      for q, k in ((1, 1), (127, 129), (512, 512), (65, 1000))),
    # Causal with lengths that differ: bottom-right aligned, and rows without a key.
    *(f"h4_kv2_q{q}_k{k}_d128_bf16_causal"
      for q, k in ((1, 777), (100, 612), (612, 100), (300, 1))),
    # Groups of heads: MQA, a group that divides no tile, one head.
    "b3_h16_kv1_q130_d64_fp16_causal",
    "h6_kv2_q257_k300_d96_bf16_causal",
    "h1_q200_d128_bf16_causal",
    "b2_h40_kv8_q70_d128_bf16_full",
    # head_dim_v that differs, and head dimensions that leave strides no multiples of 16.
    "h4_kv2_q200_d64_dv128_bf16_causal",
    "h4_kv2_q200_k333_d128_dv40_fp16_full",
    "h4_kv2_q200_d72_bf16_causal",
    "h4_kv2_q200_d36_dv20_fp16_causal",
    "h4_kv2_q200_d64_dv32_fp16_causal",
    "h4_kv2_q200_d128_dv16_bf16_full",
    "h4_kv2_q200_d32_dv16_fp16_causal",
    "h3_q99_d17_fp32_full",
    # Long, with more programs than SMs.
    "h32_kv8_q2048_d128_bf16_causal",
    "b4_h16_q1024_d64_fp16_full",
]  # fmt: skip


def here(workload: Workload) -> Case:
    import torch

    return Case(KERNEL, workload, Target.named(torch.cuda.get_device_name()))


def feasible(case: Case) -> list[dict[str, Any]]:
    """Returns the CONFIGS that the rules allow, and the default."""
    some = [config for config in CONFIGS if case.refusal(config) is None]
    return [*some, case.default()]


def fits(case: Case, config: dict[str, Any]) -> bool:
    """Whether the compiler's shared memory is within the limit that the rules only bound below."""
    resources = languages.load(KERNEL.language).compile(case, config).resources
    return bool(resources.smem_bytes <= gpu(case.arch).smem_per_block_bytes)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> Iterator[None]:
    """Puts every binary in Triton's cache, by as many processes as there are processors."""
    import torch

    if not torch.cuda.is_available():
        yield
        return
    jobs = [
        (case.names, config)
        for case in map(here, map(Workload.parse, WORKLOADS))
        for config in feasible(case)
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        list(pool.map(compile_pool._compile, *zip(*jobs, strict=True), chunksize=4))
    yield


def launched(case: Case, made: tuple[Any, ...], config: Config) -> tuple[Any, Any]:
    """Launches the config on tensors full of NaN; copies of what it wrote."""
    import torch

    language, kernel = languages.load(case.kernel.language), case.kernel
    binary = language.compile(case, config, kernel.module.is_aligned(made))
    for output in made[3:]:
        output.fill_(float("nan"))
    spec = LaunchSpec(case, config, case.workload.head_dim**-0.5)
    language.prepare(spec, binary, made)(*made)
    torch.cuda.synchronize()
    return made[3].clone(), made[4].clone()


def verdict(made: tuple[Any, ...], workload: Workload) -> Comparison:
    """fp32 kernels are as exact as an fp32 reference, so theirs is in fp64."""
    import torch

    dtype = torch.float64 if workload.dtype == "fp32" else torch.float32
    return check.compare(workload, made, workload.head_dim**-0.5, dtype)


@pytest.mark.parametrize("text", WORKLOADS)
def test_numbers_are_right_and_the_same_each_time(text: str) -> None:
    import torch

    workload = Workload.parse(text)
    made, case = check.tensors(workload, DEVICE, seed=0), here(workload)
    for config in filter(partial(fits, case), feasible(case)):
        first = launched(case, made, config)
        found = verdict(made, workload)
        assert found.passed, f"{found.reason}: {config}"
        again = launched(case, made, config)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True)), config


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: "-".join(map(str, config.values())))
def test_layouts_are_strides(config: dict[str, Any]) -> None:
    """BHSD, a slice of a packed QKV and of a longer cache give what BSHD gives, to the bit."""
    import torch

    workload = Workload.parse("b2_h4_kv4_q200_k200_d64_bf16_causal")
    case = here(workload)
    if case.refusal({**config, "PACK_GQA": 0}) is not None:
        pytest.skip("cannot run on this arch")
    config = {**config, "PACK_GQA": 0}
    made = check.tensors(workload, DEVICE, seed=0)
    right = launched(case, made, config)
    q, k, v, out, lse = made

    def bhsd(x: Any) -> Any:
        return x.contiguous()

    def part_of_more(x: Any) -> Any:
        batch, heads, seqlen, head_dim = x.shape
        more = torch.full((batch, seqlen + 8, heads + 3, head_dim + 16), 7.0, dtype=x.dtype,
                          device=x.device).transpose(1, 2)  # fmt: skip
        view = more[:, 1 : heads + 1, :seqlen, :head_dim]
        view.copy_(x)
        return view

    for layout in (bhsd, part_of_more):
        others = tuple(layout(x) for x in (q, k, v, out))
        got = launched(case, (*others, lse), config)
        assert all(torch.equal(a, b) for a, b in zip(right, got, strict=True)), layout.__name__


def test_nothing_is_written_beside_the_output() -> None:
    import torch

    workload = Workload.parse("b2_h4_kv2_q201_k77_d80_bf16_full")
    case = here(workload)
    for config in feasible(case):
        q, k, v, _, _ = check.tensors(workload, DEVICE, seed=0)
        around = torch.full((2, 4, 203, 96), 7.0, dtype=q.dtype, device=DEVICE)
        lse_around = torch.full((2 * 4 * 201 + 64,), 7.0, device=DEVICE)
        out = around[:, :, 1:202, :80]
        lse = lse_around[32:-32].view(2, 4, 201)
        launched(case, (q, k, v, out, lse), config)
        assert verdict((q, k, v, out, lse), workload).passed, config
        assert (around[:, :, 0] == 7).all() and (around[:, :, 202] == 7).all(), config
        assert (around[:, :, :, 80:] == 7).all(), config
        assert (lse_around[:32] == 7).all() and (lse_around[-32:] == 7).all(), config


def test_pointers_that_are_not_aligned() -> None:
    """One element in: no 16-byte loads then, and no TMA."""
    workload = Workload.parse("h4_kv2_q150_k170_d64_bf16_causal")

    def shifted(x: Any) -> Any:
        import torch

        batch, heads, seqlen, head_dim = x.shape
        wide = torch.zeros((batch, heads, seqlen, head_dim + 1), dtype=x.dtype, device=x.device)
        view = wide[..., 1:]
        view.copy_(x)
        return view

    q, k, v, out, lse = check.tensors(workload, DEVICE, seed=0)
    made = (*(shifted(x) for x in (q, k, v, out)), lse)
    assert not KERNEL.module.is_aligned(made)
    case = here(workload)
    for config in feasible(case):
        if config["USE_TMA"] == 0:
            launched(case, made, config)
            assert verdict(made, workload).passed, config


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_any_positive_scale(scale: float) -> None:
    import torch

    workload = Workload.parse("h4_kv2_q150_k170_d64_fp32_causal")
    language, case = languages.load(KERNEL.language), here(workload)
    made = check.tensors(workload, DEVICE, seed=0)
    config = case.default()
    binary = language.compile(case, config, KERNEL.module.is_aligned(made))
    language.prepare(LaunchSpec(case, config, scale), binary, made)(*made)
    torch.cuda.synchronize()
    found = check.compare(workload, made, scale, torch.float64)
    # Scores of hundreds in fp32 are exact to 1e-5 each, and exp makes that relative.
    assert found.error < (2e-5 if scale <= 1 else 2e-3) and found.lse_error < 1e-2


def test_offsets_beyond_two_to_the_31st() -> None:
    """8.4 million keys of 256 elements: a row's offset no longer fits 32 bits."""
    from tests.support.gpu_kernels import much_memory

    workload = Workload.parse("h1_q16_k8404992_d256_bf16_full")
    case = here(workload)
    with much_memory():
        made = check.tensors(workload, DEVICE, seed=0)
        # The last keys decide: they alone resemble the queries.
        made[1][:, :, -16:] = made[0] * 4
    for use_tma in (0, 1):
        config = {**case.default(), "USE_TMA": use_tma}
        if case.refusal(config) is None:
            launched(case, made, config)
            with much_memory():
                found = verdict(made, workload)
            assert found.passed, config


def test_windows_are_refused_not_ignored() -> None:
    assert here(replace(Workload.parse("q512"), window_left=127)).why_not()
