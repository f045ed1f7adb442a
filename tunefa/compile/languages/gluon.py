"""Gluon, the layer of Triton in which a kernel places registers, barriers and copies itself.

Compiled and launched like Triton (see there for what a kernel file defines), from another kind of
source. A descriptor's type may name its layout in shared memory, `tensordesc<bf16[1, 64],LAYOUT>`.
Gluon has no interpreter.
"""

from __future__ import annotations

import re
from typing import Any

from tunefa.compile.contract import Compiled
from tunefa.compile.languages import triton
from tunefa.compile.languages.triton import binary_key, prepare, versions
from tunefa.spec.target import Case
from tunefa.spec.trial import Config

__all__ = ["binary_key", "compile", "prepare", "versions", "why_no_interpreter"]


_DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[([\d, ]+)\]>")


def compile(case: Case, config: Config, aligned: bool = True) -> Compiled:
    """The config as a cubin for the case's arch; see the same function of Triton."""
    triton.installed()  # says what to do where Triton is missing
    return triton.build(_source, case, config, aligned)


def _source(fn: Any, signature: dict[str, str], constexprs: Any, attrs: Any) -> Any:
    """What the compiler begins with."""
    from triton.experimental.gluon._runtime import GluonASTSource

    typed = {name: _with_layout(kind) for name, kind in signature.items()}
    return GluonASTSource(fn=fn, signature=typed, constexprs=constexprs, attrs=attrs)


def _with_layout(kind: str) -> str:
    """A descriptor's type with the layout in which its blocks lie in shared memory: the widest
    swizzle that they allow, where the type names no other."""
    from triton.experimental.gluon import language as gl

    plain = _DESCRIPTOR.fullmatch(kind)
    if plain is None:
        return kind
    block = [int(size) for size in plain[2].split(",")]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.dtype(plain[1]))
    return f"{kind.removesuffix('>')},{layout!r}>"


def why_no_interpreter() -> str:
    """Why a result cannot be checked without the device."""
    return "Gluon has no interpreter, and only a device can check what it computes"
