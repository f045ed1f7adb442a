"""Kernels in CUDA C++: what NVRTC makes of one, what is kept, and errors in one line."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.cuda_copies import WORKLOAD, case, compiled, entries
from tests.support.own_kernels import COPY_IN_CUDA, COPY_IN_CUDA_HOST, FIRST_IN_CUDA, OwnKernels
from tunefa.compile import languages, nvrtc
from tunefa.compile.contract import CompileError
from tunefa.compile.languages import cuda as language
from tunefa.compile.pool import CompilePool
from tunefa.spec.kernel import Kernel
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

ARCHS = ("sm80", "sm86", "sm89", "sm90", "sm120")


@pytest.fixture
def kernel(own_kernels: OwnKernels, request: pytest.FixtureRequest) -> Kernel:
    """One of this test's own."""
    return own_kernels.add_cuda("cuda_" + re.sub(r"\W", "_", request.node.name))


# ------------------------------------------------------------------------------------ compiling


@pytest.mark.parametrize("arch", ARCHS)
def test_it_compiles_for_every_arch_without_a_device(kernel: Kernel, arch: str) -> None:
    made = compiled(kernel, arch)
    assert made.binary.cubin.image.startswith(b"\x7fELF") and made.seconds > 0
    found = made.resources
    assert found.smem_bytes == 65536 + 32 * 4, "what the host side asks for and what it declares"
    assert found.registers and (found.spill_bytes, found.stack_bytes) == (0, 0)


def test_hopper_s_own_instructions_are_there(own_kernels: OwnKernels) -> None:
    take = 'asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");\n    __syncthreads();'
    kernel = own_kernels.add_cuda("setmaxnreg", cu=COPY_IN_CUDA.replace("__syncthreads();", take))
    compiled(kernel, "sm90")
    with pytest.raises(CompileError, match=r"setmaxnreg"):
        compiled(kernel, "sm89")


def test_spills_are_reported(kernel: Kernel) -> None:
    found = compiled(kernel, "sm80", width=200).resources
    assert found.registers == 128, "as __launch_bounds__ has it"
    assert found.spill_bytes and found.stack_bytes


def test_another_kernel_of_the_file_is_not_this_one() -> None:
    log = """ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 48 registers, used 1 barriers, 128 bytes smem
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    624 bytes stack frame, 1064 bytes spill stores, 1348 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 624 bytes cumulative stack size
"""
    assert nvrtc.resources(log, "first") == Resources(128, 48, 0, 0)
    assert nvrtc.resources(log, "second") == Resources(0, 128, 1064, 624)
    assert nvrtc.resources("", "first") == Resources(0, None, None, None)


def test_macros_are_what_tells_binaries_apart(kernel: Kernel) -> None:
    keys = {
        language.binary_key(case(kernel, workload=workload), {"WIDTH": width}, True)
        for workload in (WORKLOAD, Workload.parse("b2_h8_q7_d64"))
        for width in (1, 2)
    }
    assert len(keys) == 2


def test_what_runs_first_is_compiled_too(own_kernels: OwnKernels) -> None:
    kernel = own_kernels.add_cuda("cuda_first", py=COPY_IN_CUDA_HOST + FIRST_IN_CUDA)
    both = compiled(kernel)
    assert both.preprocess.threads == 64 and both.preprocess.cubin != both.binary.cubin
    causal, full = case(kernel), case(kernel, workload=Workload.parse("h4_q100_d64_full"))
    alone = language.compile(full, {"WIDTH": 1})
    assert alone.preprocess is None
    config = {"WIDTH": 1}
    keys: list[Any] = [language.binary_key(each, config, True) for each in (causal, full)]
    assert len(keys[0]) == len(keys[1]) + 1


# ------------------------------------------------------------------------------------- headers


def test_shared_headers_are_compiled_hashed_and_part_of_the_key(own_kernels: OwnKernels) -> None:
    folder = own_kernels.folder / "kernels"
    (folder / "cuda").mkdir()
    (folder / "cuda" / "one.cuh").write_text('#include "cuda/two.cuh"\n#define TIMES TWO\n')
    (folder / "cuda" / "two.cuh").write_text("#define TWO 2.0f\n")
    (folder / "cuda" / "other.cuh").write_text("#error nobody asked for it\n")
    text = '#include "cuda/one.cuh"\n' + COPY_IN_CUDA.replace("found[0];", "found[0] * TIMES;")
    kernel = own_kernels.add_cuda("with_headers", cu=text)
    names = [path.name for path in kernel.sources]
    assert names == ["one.cuh", "two.cuh", "with_headers.cu", "with_headers.py"]
    first, source_hash = compiled(kernel).binary.cubin.image, kernel.source_hash
    (folder / "cuda" / "two.cuh").write_text("#define TWO 3.0f\n")
    changed = own_kernels.add_cuda("with_headers", cu=text)
    assert compiled(changed).binary.cubin.image != first
    assert changed.source_hash != source_hash
    assert len(entries()) == 2


# -------------------------------------------------------------------------------------- the cache


# ----------------------------------------------------------------------------------------- errors


def test_what_does_not_compile_is_a_trial_with_the_place(own_kernels: OwnKernels) -> None:
    wrong = "#if WIDTH == 2\n__device__ int two = nothing;\n#endif\n"
    kernel = own_kernels.add_cuda("cuda_wrong", cu=wrong + COPY_IN_CUDA)
    with CompilePool(case(kernel), workers=1) as pool:
        failed, good = (pool.submit({"WIDTH": width}).trial() for width in (2, 1))
    assert failed.outcome == "compile_failed"
    assert failed.reason == 'cuda_wrong.cu:2: error: identifier "nothing" is undefined'
    assert good.outcome == "ok" and good.resources and good.compile_s


def test_it_has_no_interpreter() -> None:
    assert not languages.has_interpreter("cuda") and "device" in language.why_no_interpreter()
