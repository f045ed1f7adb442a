"""Kernels in CUDA C++ that NVRTC compiles at once, and what is kept of them."""

from __future__ import annotations

from pathlib import Path

from tunefa import assets
from tunefa.compile.contract import Compiled
from tunefa.compile.languages import cuda as language
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("h4_q100_d64")


def case(kernel: Kernel, arch: str = "sm90", workload: Workload = WORKLOAD) -> Case:
    return Case(kernel, workload, Target.named(arch))


def compiled(kernel: Kernel, arch: str = "sm90", width: int = 1) -> Compiled:
    return language.compile(case(kernel, arch), {"WIDTH": width})


def entries() -> list[Path]:
    return [path for path in (assets.cache() / "cubins").rglob("*") if path.is_file()]
