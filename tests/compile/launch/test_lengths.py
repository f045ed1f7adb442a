"""tunefa/compile/launch/lengths.py: kernels that say what follows the lengths, and others.
`tests/contracts/test_lengths.py` compares what they say with their host sides."""

from __future__ import annotations

import importlib

import pytest

from tests.support.own_kernels import OwnKernels
from tunefa.compile.launch import lengths
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("h8_q512_d64_causal")


def test_a_kernel_that_says_it() -> None:
    kernel = kernels.load("attention_fwd_triton")
    config = kernel.default(WORKLOAD, Target.named("sm90").arch)
    found = lengths.load(kernel, WORKLOAD, config, 132)
    assert found is not None
    sizes = [(0, 0, 0, 0, *range(first, first + 4)) for first in (1, 5, 9, 13)]
    steps = (1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15)
    assert found.numbers(2, 512, 70, sizes, ())[1][:15] == (*steps, 8, 512, 70)


def test_a_kernel_that_does_not(own_kernels: OwnKernels) -> None:
    kernel = own_kernels.add_cuda("says_nothing_of_lengths")
    assert lengths.load(kernel, WORKLOAD, {"WIDTH": 1}, 132) is None


def test_a_file_that_imports_what_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernels.load("attention_fwd_triton")

    def fails(name: str) -> None:
        raise ModuleNotFoundError("no module named gone", name="gone")

    monkeypatch.setattr(importlib, "import_module", fails)
    with pytest.raises(ModuleNotFoundError, match="gone"):
        lengths.load(kernel, WORKLOAD, {}, 132)
