"""tunefa/compile/nvrtc.py: its words, and what is said where it is missing or too old."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cuda_copies import compiled, entries
from tests.support.own_kernels import COPY_IN_CUDA, OwnKernels
from tests.support.tree import TREE
from tunefa.compile import languages, nvrtc
from tunefa.compile.contract import CompileError
from tunefa.compile.languages import cuda as language
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec.kernel import Kernel


@pytest.fixture
def kernel(own_kernels: OwnKernels, request: pytest.FixtureRequest) -> Kernel:
    """One of this test's own."""
    return own_kernels.add_cuda("cuda_" + re.sub(r"\W", "_", request.node.name))


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
        with pytest.raises(
            TunefaError, match=r"no compiler found: cuda-bindings.*pip install 'cuda-"
        ):
            attempt()


def test_no_library(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, fresh_nvrtc: None) -> None:
    def absent() -> Any:
        raise RuntimeError("Failure finding libnvrtc.so\nattempts:\n  here")

    monkeypatch.setattr(nvrtc, "_bindings", lambda: SimpleNamespace(nvrtcVersion=absent))
    with pytest.raises(TunefaError, match=r"Failure finding libnvrtc\.so\): pip install 'cuda-b"):
        compiled(kernel)


def test_what_is_to_be_installed_is_what_the_extra_requires() -> None:
    """No index has tunefa, so that a message cannot name `tunefa[cuda]`."""
    (extra,) = re.findall(r"^cuda = \[(.*)\]$", (TREE / "pyproject.toml").read_text(), re.MULTILINE)
    required = " ".join(f"'{each}'" for each in re.findall(r'"([^"]+)"', extra))
    assert required and f"pip install {required}" == nvrtc._HOW


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
