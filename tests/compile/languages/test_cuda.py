"""Kernels in CUDA C++: what NVRTC makes of one, what is kept, and errors in one line."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.own_kernels import COPY_IN_CUDA, COPY_IN_CUDA_HOST, FIRST_IN_CUDA, OwnKernels
from tunefa import assets
from tunefa.compile import languages, nvrtc
from tunefa.compile.contract import Compiled, CompileError
from tunefa.compile.languages import cuda as language
from tunefa.compile.pool import CompilePool
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("h4_q100_d64")
ARCHS = ("sm80", "sm86", "sm89", "sm90", "sm120")


@pytest.fixture
def kernel(own_kernels: OwnKernels, request: pytest.FixtureRequest) -> Kernel:
    """One of this test's own."""
    return own_kernels.add_cuda("cuda_" + re.sub(r"\W", "_", request.node.name))


def case(kernel: Kernel, arch: str = "sm90", workload: Workload = WORKLOAD) -> Case:
    return Case(kernel, workload, Target.named(arch))


def compiled(kernel: Kernel, arch: str = "sm90", width: int = 1) -> Compiled:
    return language.compile(case(kernel, arch), {"WIDTH": width})


def entries() -> list[Path]:
    return [path for path in (assets.cache() / "cubins").rglob("*") if path.is_file()]


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


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What NVRTC was asked to compile."""
    seen: list[Any] = []
    compile = nvrtc.compile

    def watched(*arguments: Any) -> Any:
        seen.append(arguments)
        return compile(*arguments)

    monkeypatch.setattr(nvrtc, "compile", watched)
    yield seen


def test_a_cubin_is_compiled_once(kernel: Kernel, compilations: list[Any]) -> None:
    first, again = compiled(kernel), compiled(kernel)
    assert first.binary == again.binary and first.resources == again.resources
    for arch, width in (("sm80", 1), ("sm90", 2)):
        compiled(kernel, arch, width)
    assert len(compilations) == 3 and len(entries()) == 3
    assert all(path.is_relative_to(assets.home()) for path in entries())


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:-1],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]),
        lambda whole: b"{}\n" + whole.partition(b"\n")[2],
        lambda whole: b"[1]\n",
        lambda whole: b"\xff\xfe\n" * 9,
    ],
)
def test_a_damaged_entry_is_compiled_again(
    kernel: Kernel, compilations: list[Any], damage: Any
) -> None:
    first = compiled(kernel)
    (entry,) = entries()
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    assert compiled(kernel).binary == first.binary and len(compilations) == 2
    assert entry.read_bytes() == whole and entries() == [entry]


def test_a_folder_that_cannot_be_written_keeps_nobody_from_compiling(
    kernel: Kernel, compilations: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path / "file"))
    assert compiled(kernel).resources == compiled(kernel).resources and len(compilations) == 2


def test_compilers_side_by_side(kernel: Kernel) -> None:
    gate = threading.Barrier(4)

    def work(_: int) -> Any:
        gate.wait()
        return compiled(kernel).binary

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(work, range(4)))) == 1
    assert len(entries()) == 1


# ----------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("was", "is_", "error"),
    [
        ("own[32];", "own[32]", r'NAME\.cu:10: error: expected a ";"'),
        ("staged[i];", "staged[j];", r'NAME\.cu:21: error: identifier "j" is undefined'),
        ("#ifndef", '#include "cuda_fp16.h"\n#ifndef', r"NAME\.cu:2: .*cannot open.*cuda_fp16\.h"),
        ("own[32];", "own[99999];", r".*uses too much shared data"),
        ("own[32];", 'own[32]; static_assert(WIDTH > 1, "why not");', r"NAME\.cu:9: .*why not"),
        ("__syncthreads();", 'asm volatile("nonsense;");', r"ptxas .*nonsense|.*[Ss]yntax error"),
    ],
)
def test_the_compilers_words_with_file_and_line(
    own_kernels: OwnKernels, was: str, is_: str, error: str
) -> None:
    name = f"cuda_words_{abs(hash(is_))}"
    assert was in COPY_IN_CUDA
    kernel = own_kernels.add_cuda(name, cu=COPY_IN_CUDA.replace(was, is_, 1))
    with pytest.raises(CompileError, match=error.replace("NAME", name)) as caught:
        compiled(kernel)
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= 300
    assert entries() == []


def test_what_does_not_compile_is_a_trial_with_the_place(own_kernels: OwnKernels) -> None:
    wrong = "#if WIDTH == 2\n__device__ int two = nothing;\n#endif\n"
    kernel = own_kernels.add_cuda("cuda_wrong", cu=wrong + COPY_IN_CUDA)
    with CompilePool(case(kernel), workers=1) as pool:
        failed, good = (pool.submit({"WIDTH": width}).trial() for width in (2, 1))
    assert failed.outcome == "compile_failed"
    assert failed.reason == 'cuda_wrong.cu:2: error: identifier "nothing" is undefined'
    assert good.outcome == "ok" and good.resources and good.compile_s


def test_wgmmas_that_do_not_overlap_fail_by_that_name(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = nvrtc._read
    said = (
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized due to insufficient register resources for the wgmma pipeline in function 'f'\n"
    )
    monkeypatch.setattr(
        nvrtc, "_read", lambda p, what: said.encode() if what == "ProgramLog" else read(p, what)
    )
    with pytest.raises(CompileError, match=r"^wgmma serialized: \(C7510\).*insufficient register"):
        compiled(kernel)


@pytest.fixture
def fresh_nvrtc() -> Iterator[None]:
    """Looks for NVRTC again, in the test and after it."""
    nvrtc.installed.cache_clear()
    yield
    nvrtc.installed.cache_clear()


def test_no_cuda_bindings(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, fresh_nvrtc: None
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    for attempt in (lambda: compiled(kernel), language.versions):
        with pytest.raises(TunefaError, match=r"no compiler found: cuda-bindings.*tunefa\[cuda\]"):
            attempt()


def test_no_library(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, fresh_nvrtc: None) -> None:
    def absent() -> Any:
        raise RuntimeError("Failure finding libnvrtc.so\nattempts:\n  here")

    monkeypatch.setattr(nvrtc, "_bindings", lambda: SimpleNamespace(nvrtcVersion=absent))
    with pytest.raises(TunefaError, match=r"Failure finding libnvrtc\.so\): pip install 'tunefa\["):
        compiled(kernel)


def test_an_nvrtc_older_than_the_chip(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    old = nvrtc.Installed("12.4.127", "/somewhere/libnvrtc.so.12", (80, 86, 89, 90))
    monkeypatch.setattr(nvrtc, "installed", lambda: old)
    words = r"NVRTC 12\.4\.127 \(/somewhere/.*\) does not compile for sm_120: pip install --upgrade"
    with pytest.raises(TunefaError, match=words):
        compiled(kernel, "sm120")
    lacking = languages.without_compiler([kernel], archs.load("sm120"))
    assert list(lacking) == [kernel.name] and re.match(words, lacking[kernel.name])
    assert languages.without_compiler([kernel], archs.load("sm90")) == {}


def test_versions_say_where_from() -> None:
    found = nvrtc.installed()
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", found.version)
    assert language.versions() == {"compiler": f"nvrtc {found.version}"}
    assert Path(found.path).is_file() and "libnvrtc" in found.path
    assert {80, 86, 89, 90} <= set(found.targets)


def test_it_has_no_interpreter() -> None:
    assert not languages.has_interpreter("cuda") and "device" in language.why_no_interpreter()
