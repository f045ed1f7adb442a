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
    assert found.numbers(2, 512, 70, range(12), ())[1][:15] == (*range(12), 8, 512, 70)


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
