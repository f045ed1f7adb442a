"""8-bit attention in attention_fwd_cuda_sm90: V^T to the bit on the CPU, and what is compiled."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import cuda_on_cpu
from tests.support.launch_specs import spec_of
from tests.support.transposed_values import in_memory
from tunefa.compile import languages
from tunefa.compile.contract import Compiled
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_cuda_sm90")
SM90 = archs.load("sm90")
NARROW = {"FP16_PV": 0}
# One thread after the other, twice: the second time shared memory is as all threads left it.
PROGRAM = """
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(threads)
typedef unsigned u32;
static struct { unsigned x; } threadIdx, blockIdx;
static void __syncthreads() {}
static u32 __byte_perm(u32 a, u32 b, u32 order) {
    unsigned long long both = (unsigned long long)b << 32 | a;
    u32 made = 0;
    for (int i = 0; i < 4; i++) made |= (both >> 8 * (order >> 4 * i & 7) & 255) << 8 * i;
    return made;
}
#include "cuda/transpose_e4m3.cuh"
extern "C" void run(int blocks, int threads, const u32* v, u32* vt, int heads_kv,
                    int seqlen_k, int words, long long batch, long long head, long long key) {
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (int i = 0; i < 2 * threads; i++) {
            threadIdx.x = i % threads;
            transpose_v(v, vt, heads_kv, seqlen_k, words, batch, head, key);
        }
}
"""


@pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
@pytest.mark.parametrize(
    "sizes", ["h1_k1_d64", "b2_h4_kv2_k333_d128", "h1_k512_d256", "h6_kv3_k17_d16", "b2_k800_d176"]
)
def test_v_is_transposed_and_reordered_to_the_bit(sizes: str, tmp_path: Path) -> None:
    w = Workload.parse(f"{sizes}_q1_e4m3_full")
    preprocess = KERNEL.module.preprocess(w, NARROW)
    (tmp_path / "program.cc").write_text(PROGRAM)
    defines = [f"-D{name}={value}" for name, value in preprocess["defines"].items()]
    command = [str(cuda_on_cpu.COMPILER), "-std=c++17", "-O1", "-w", "-shared", "-fPIC", *defines]
    command += ["-iquote", str(KERNEL.source.parent), "program.cc", "-o", "program.so"]
    subprocess.run(command, check=True, cwd=tmp_path)
    library = ctypes.CDLL(str(tmp_path / "program.so"))

    more = torch.randint(-128, 128, (w.batch, w.seqlen_k, w.heads_kv + 1, w.head_dim_v + 16))
    v = more.to(torch.int8)[:, :, 1:, : w.head_dim_v].transpose(1, 2)
    ((shape, dtype),) = KERNEL.module.scratch((None, None, v), spec_of(KERNEL, w, NARROW))
    assert dtype == torch.float8_e4m3fn
    memory = torch.full((w.batch + 1, *shape[1:]), 127, dtype=torch.int8)  # any bits of 8
    made = memory[: w.batch]
    (blocks, *_), arguments = KERNEL.module.preprocess_arguments(
        (None, None, v, made), spec_of(KERNEL, w, NARROW)
    )
    library.run(
        blocks, preprocess["threads"],
        *(ctypes.c_void_p(each.data_ptr()) for each in (v, made)), *arguments[2:],
    )  # fmt: skip
    right = torch.zeros(w.batch, w.heads_kv, shape[3], w.head_dim_v, dtype=torch.int8)
    right[:, :, : w.seqlen_k] = v
    assert torch.equal(made, torch.stack([in_memory(x) for x in right.flatten(0, 1)]).view(shape))
    assert bool((memory[w.batch] == 127).all())  # nothing is written behind it


def test_no_grid_is_larger_than_a_launch_takes() -> None:
    """8.4 million keys, of which a block takes 128: 65,535 is the most of the second axis."""
    w = Workload.parse("h1_q16_k8404992_d64_e4m3_full")
    v = torch.empty(1, 1, 1, 64, dtype=torch.int8).expand(1, 1, w.seqlen_k, 64)
    vt = torch.empty(1, 1, 1, 1, dtype=torch.int8).expand(1, 1, 64, w.seqlen_k)
    for config in (NARROW, {"FP16_PV": 1}):
        spec = spec_of(KERNEL, w, config)
        grid, _ = KERNEL.module.preprocess_arguments((None, None, v, vt), spec)
        assert grid == (w.seqlen_k // 128, 1, 1)


def binary(workload: Workload) -> Compiled:
    case = Case(KERNEL, workload, Target.named("sm90"))
    made: Compiled = languages.load("cuda").compile(case, case.default())
    return made


needs_nvrtc = pytest.mark.skipif(
    languages.load("cuda").why_no_compiler(SM90) is not None, reason="needs NVRTC"
)


@needs_nvrtc
@pytest.mark.parametrize("head_dim", [16, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("mask", ["full", "causal", "full_fast"])
def test_defaults_take_the_memory_that_the_space_says(head_dim: int, mask: str) -> None:
    workload = Workload.parse(f"h16_q4096_d{head_dim}_e4m3_{mask}")
    resources = binary(workload).resources
    said = KERNEL.space.estimate(KERNEL.default(workload, SM90), workload, SM90)
    assert resources.smem_bytes == said["smem_bytes"]
    # Next to nothing: four registers of 160.
    assert resources.spill_bytes is not None and resources.spill_bytes <= 16


def test_fast_sums_need_no_memory_in_fp32() -> None:
    made = {}
    config = KERNEL.default(Workload.parse("h16_q4096_d256_e4m3_full"), SM90) | NARROW
    for accuracy in ("", "_fast"):
        workload = Workload.parse(f"h16_q4096_d256_e4m3_full{accuracy}")
        said = KERNEL.space.estimate(config, workload, SM90)["smem_bytes"]
        made[accuracy] = said, KERNEL.module.variant(workload, config)["defines"]
    # Sums of two warpgroups of 64 rows in fp32, in place of their output in 16 bits.
    assert made[""][0] - made["_fast"][0] == 2 * 64 * 256 * (4 - 2)
    assert made["_fast"][1]["MOST_SUM_KEYS"] == 0 and "MOST_SUM_KEYS" not in made[""][1]


@needs_nvrtc
def test_only_e4m3_needs_something_to_run_first() -> None:
    text = "b2_h4_kv2_q300_k333_d128_{}full"
    assert binary(Workload.parse(text.format(""))).preprocess is None
    assert binary(Workload.parse(text.format("e4m3_"))).preprocess is not None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"EPILOGUE_SUBTILE": 0}, "e4m3 needs EPILOGUE_SUBTILE 1"),
        ({"BLOCK_N": 112}, "multiple of 32"),
        ({"BLOCK_N": 160, "num_stages": 2, "Q_STAGES": 1}, "must leave a thread 24 registers"),
        ({"P_IN_SMEM": 1}, "P_IN_SMEM needs a 16-bit dtype"),
        ({"FP16_PV": 1, "BLOCK_N": 96}, "or 32 for FP16_PV"),
    ],
)
def test_what_8_bits_ask_for_is_refused_in_words(changes: dict[str, Any], reason: str) -> None:
    workload = Workload.parse("h16_q4096_d128_e4m3_full")
    config = {**KERNEL.default(workload, SM90), **changes}
    assert reason in (KERNEL.refusal(config, workload, SM90) or "")


@pytest.mark.parametrize(
    ("sizes", "serves"),
    [("q4096_d72", False), ("q4096_d64_softcap", False), ("q4096_d128_w100", False),
     ("q8_d128", False), ("q8_d256", True), ("q4096_d80_dv16", True)],
)  # fmt: skip
def test_others_are_left_to_others(sizes: str, serves: bool) -> None:
    assert (KERNEL.why_not(Workload.parse(f"h8_kv2_{sizes}_e4m3"), SM90) is None) == serves
