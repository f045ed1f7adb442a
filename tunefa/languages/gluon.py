"""Gluon, the layer of Triton in which a kernel places registers, barriers and copies itself.

Compiled and launched like Triton (see there for what a kernel file defines), from another kind of
source. Gluon has no interpreter.
"""

from __future__ import annotations

from tunefa.arch import Arch
from tunefa.kernel import Kernel
from tunefa.languages import Compiled, triton
from tunefa.languages.triton import binary_key, prepare, versions
from tunefa.trial import Config
from tunefa.workload import Workload

__all__ = ["binary_key", "compile", "prepare", "versions", "why_no_interpreter"]


def compile(
    kernel: Kernel, workload: Workload, config: Config, arch: Arch, aligned: bool = True
) -> Compiled:
    """The config as a cubin for `arch`; see the same function of Triton."""
    _ = kernel.module  # says what to do where Triton is missing
    from triton.experimental.gluon._runtime import GluonASTSource

    return triton.build(GluonASTSource, kernel, workload, config, arch, aligned)


def why_no_interpreter() -> str:
    """Why a result cannot be checked without the device."""
    return "Gluon has no interpreter, and only a device can check what it computes"
