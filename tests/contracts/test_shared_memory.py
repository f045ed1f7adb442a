"""The shared memory of the kernels in CUDA C++, as their spaces lay it out and as they compile."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.support.own_kernels import OwnKernels
from tunefa.compile import languages
from tunefa.compile.contract import CompileError
from tunefa.compile.languages import cuda
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.shared_memory import SharedMemory
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

SPACES = [kernels.load(name) for name in kernels.names()]
KERNELS = [kernel for kernel in SPACES if kernel.space.shared_memory_exprs]
every = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
needs_nvrtc = pytest.mark.skipif(
    languages.load("cuda").why_no_compiler(archs.load("sm90")) is not None, reason="needs NVRTC"
)
SIZES = ("d128_bf16_causal", "d64_fp16_full", "d80_dv64_bf16_causal", "d256_bf16_full",
         "d128_e4m3_causal", "d256_e4m3_full", "d192_bf16_causal")  # fmt: skip


def cases(kernel: Kernel) -> list[Case]:
    op = kernel.space.op
    sizes = [each for each in SIZES if op == "fwd" or "e4m3" not in each]
    lengths = "k4096" if op == "decode" else "q4096"
    workloads = [Workload.parse(f"{op}_h32_kv8_{lengths}_{each}") for each in sizes]
    if op == "decode":
        workloads += [Workload.parse(f"decode_h{heads}_k4096_page64_mla") for heads in (16, 128)]
    targets = map(Target.named, ("sm80", "sm90"))
    made = [Case(kernel, w, target) for target, w in itertools.product(targets, workloads)]
    return [case for case in made if case.why_not() is None]


def layout(case: Case, config: dict[str, Any]) -> SharedMemory:
    made = case.shared_memory(config)
    assert made is not None
    return made


def test_kernels_in_cuda_are_laid_out_by_their_spaces() -> None:
    in_cuda = {kernel.name for kernel in SPACES if kernel.language == "cuda"}
    assert {kernel.name for kernel in KERNELS} == in_cuda >= {"attention_bwd_cuda_sm90"}


@every
def test_regions_lie_apart_and_inside_the_size_that_is_asked_for(kernel: Kernel) -> None:
    """Byte by byte, in steps of 8: each belongs to one region, or to those that say so."""
    allowed = {each.name: each.overlaps for each in kernel.space.shared_memory_exprs}
    for case in cases(kernel):
        configs, arch = case.feasible().configs, archs.gpu(case.arch)
        for config in random.Random(0).sample(configs, min(8, len(configs))):
            made, owners = layout(case, config), dict[int, str]()
            for region in made.regions:
                assert region.offset % 8 == region.bytes % 8 == 0
                for byte in range(region.offset, region.end, 8):
                    assert owners.get(byte, "") in ("", *allowed[region.name]), (config, region)
                    owners[byte] = region.name
            assert max(owners) + 8 == made.bytes == case.estimate(config)["smem_bytes"]
            assert made.bytes <= arch.smem_per_block_bytes
            variant = cuda.variants(case, config, aligned=True)["binary"]
            assert variant["smem_bytes"] == made.bytes
            assert made.macros.items() <= variant["defines"].items()


def in_use(kernel: Kernel) -> list[tuple[str, Case, dict[str, Any]]]:
    """Each region, with a config that leaves it not empty."""
    left, found = {each.name for each in kernel.space.shared_memory_exprs}, []
    for case in cases(kernel):
        for config in case.feasible().configs[::7]:
            for region in layout(case, config).regions:
                if region.name in left and region.bytes:
                    left.remove(region.name)
                    found.append((region.name, case, config))
            if not left:
                return found
    raise AssertionError(f"no config uses {left}")


@every
@needs_nvrtc
def test_a_region_that_does_not_hold_what_it_should_does_not_compile(kernel: Kernel) -> None:
    """One slot or one byte fewer, or an offset that is not aligned; each of a region in use."""
    for name, case, config in in_use(kernel):
        variant = cuda.variants(case, config, aligned=True)["binary"]
        for field, change in (("OFFSET", 4), ("BYTES", -1), ("SLOTS", -1)):
            macro = f"{name.upper()}_{field}"
            defines = {**variant["defines"], macro: variant["defines"][macro] + change}
            with pytest.raises(CompileError, match="static assertion failed"):
                cuda._built(kernel, {**variant, "defines": defines}, case.arch)


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        ("attention_fwd_cuda_sm80", "2 * BLOCK_N * columns", "BLOCK_N * columns", "holds a tile"),
        ("attention_fwd_cuda_sm80", "0 if SHARE_QK_SMEM else q_end", "0", "overwrite queries"),
        ("attention_fwd_cuda_sm90", "round_up(v_end, 1024)", "v_end + 128", "a swizzle begins"),
        ("attention_fwd_cuda_sm90", "BLOCK_N * k_width", "BLOCK_N * k_width * 2", "bytes of K"),
        ("attention_bwd_cuda_sm90", "2 * 128 * BLOCK_M", "128 * BLOCK_M", "dS has a chunk"),
    ],
)
def test_a_wrong_file_is_a_compile_error(
    own_kernels: OwnKernels, name: str, old: str, new: str, why: str
) -> None:
    own_kernels.copy_of_tunefa()
    path = own_kernels.folder / "search_spaces" / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    kernel = kernels.load(name)
    workload = Workload.parse(f"{kernel.op}_q4096_d128_causal")
    case = Case(kernel, workload, Target.named("sm90"))
    config = case.default()
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    wrong = replace(case, kernel=kernels.load(name))
    with pytest.raises(CompileError, match=f"static assertion failed.*{why}"):
        cuda.compile(wrong, config)
