"""Tiles of the attention kernel that the compiler for NPUs is tried on."""

from __future__ import annotations

from pathlib import Path

from tunefa.compile import languages
from tunefa.compile.ascend.compiler_report import CompilerReport
from tunefa.compile.ascend.toolchain import Toolchain
from tunefa.spec import arch_catalog as archs
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

LANGUAGE = languages.load("ascend")

SOURCE = Path(__file__).with_name("ascend_attention.py")

WORKLOAD = Workload.parse("h8_q2048_d64_fp16_full")

B3 = archs.npu(archs.load("ascend910b3"))


def case(kernel: Kernel, arch: str = "ascend910b3") -> Case:
    """The kernel on WORKLOAD."""
    return Case(kernel, WORKLOAD, Target.named(arch))


def config(block_m: int, block_n: int, multibuffer: bool = True) -> Config:
    """A tile."""
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "MULTIBUFFER": multibuffer}


CRASHING = Toolchain(Path("python"), "3.2.0", Path("bishengir-compile"), "1.1.0")


def planned(kernel: Kernel, tile: Config, arch: str = "ascend910b3") -> CompilerReport:
    """The compiler's report on a tile that fits."""
    compiled = LANGUAGE.compile(case(kernel, arch), tile)
    found: CompilerReport = compiled.binary
    assert found.status == "fits"
    return found
