"""tunefa/compile/cubin_cache.py: compiled once, whatever is damaged, gone or asked for at once."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.cuda_copies import compiled, entries
from tests.support.own_kernels import OwnKernels
from tunefa import assets
from tunefa.compile import nvrtc
from tunefa.spec.kernel import Kernel


@pytest.fixture
def kernel(own_kernels: OwnKernels, request: pytest.FixtureRequest) -> Kernel:
    """One of this test's own."""
    return own_kernels.add_cuda("cuda_" + re.sub(r"\W", "_", request.node.name))


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The arguments of each compile by NVRTC."""
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
