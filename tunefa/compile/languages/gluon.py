"""Gluon, the layer of Triton in which a kernel places registers, barriers and copies itself.

Compiled and launched like Triton (see there for what a kernel file defines), from another kind of
source. Gluon has no interpreter.
"""

from __future__ import annotations

from tunefa.compile.contract import Compiled
from tunefa.compile.languages import triton
from tunefa.compile.languages.triton import binary_key, prepare, versions
from tunefa.spec.target import Case
from tunefa.spec.trial import Config

__all__ = ["binary_key", "compile", "prepare", "versions", "why_no_interpreter"]


def compile(case: Case, config: Config, aligned: bool = True) -> Compiled:
    """The config as a cubin for the case's arch; see the same function of Triton."""
    _ = case.kernel.module  # says what to do where Triton is missing
    from triton.experimental.gluon._runtime import GluonASTSource

    return triton.build(GluonASTSource, case, config, aligned)


def why_no_interpreter() -> str:
    """Why a result cannot be checked without the device."""
    return "Gluon has no interpreter, and only a device can check what it computes"
