"""Gluon: Triton's lower layer, in which a kernel sets layouts, barriers and copies itself.

Kernels are compiled and launched as in Triton (see there for what a kernel file defines). Gluon has
no interpreter.
"""

from __future__ import annotations

from tunefa.compile.contract import Compiled
from tunefa.compile.languages import triton
from tunefa.compile.languages.triton import binary_key, prepare, versions
from tunefa.spec.target import Case
from tunefa.spec.trial import Config

__all__ = ["binary_key", "compile", "prepare", "versions", "why_no_interpreter"]


def compile(case: Case, config: Config, aligned: bool = True) -> Compiled:
    """Compiles a config to a cubin for the case's arch; see `languages.triton.compile`."""
    _ = case.kernel.module  # its error says what to install if Triton is missing
    from triton.experimental.gluon._runtime import GluonASTSource

    return triton.build(GluonASTSource, case, config, aligned)


def why_no_interpreter() -> str:
    """Returns why a result cannot be checked without a device."""
    return "Gluon has no interpreter, and only a device can check what it computes"
