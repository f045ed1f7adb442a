"""Gluon: Triton's lower layer, in which a kernel sets layouts, barriers and copies itself.

Kernels are compiled and launched as in Triton (see there for what a kernel file defines). A
descriptor's type may name its layout in shared memory, `tensordesc<bf16[1, 64],LAYOUT>`. Gluon has
no interpreter.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from tunefa.compile import triton_tools
from tunefa.compile.contract import Compiled
from tunefa.compile.languages import triton
from tunefa.compile.languages.triton import (
    binary_key,
    prepare,
    quick_versions,
    restored,
    stored,
    versions,
    why_no_compiler,
)
from tunefa.spec.target import Case
from tunefa.spec.trial import Config

__all__ = [
    "binary_key",
    "compile",
    "prepare",
    "quick_versions",
    "restored",
    "stored",
    "versions",
    "warm_up",
    "why_no_compiler",
    "why_no_interpreter",
]


def warm_up() -> None:
    """Warms up Triton, and imports Gluon."""
    triton.warm_up()
    importlib.import_module("triton.experimental.gluon._runtime")


_DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[([\d, ]+)\]>")


def compile(case: Case, config: Config, aligned: bool = True) -> Compiled:
    """Compiles a config to a cubin for the case's arch; see `languages.triton.compile`."""
    triton_tools.installed()  # says what to do where Triton is missing
    return triton.build(_source, case, config, aligned)


def _source(fn: Any, signature: dict[str, str], constexprs: Any, attrs: Any) -> Any:
    """Returns the source object that the compiler takes."""
    from triton.experimental.gluon._runtime import GluonASTSource

    typed = {name: _with_layout(kind) for name, kind in signature.items()}
    return GluonASTSource(fn=fn, signature=typed, constexprs=constexprs, attrs=attrs)


def _with_layout(kind: str) -> str:
    """Returns a descriptor's type with the layout of its blocks in shared memory.

    The layout has the widest swizzle that the blocks allow, unless the type names a layout.
    """
    from triton.experimental.gluon import language as gl

    plain = _DESCRIPTOR.fullmatch(kind)
    if plain is None:
        return kind
    block = [int(size) for size in plain[2].split(",")]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.dtype(plain[1]))
    return f"{kind.removesuffix('>')},{layout!r}>"


def why_no_interpreter() -> str:
    """Returns why a result cannot be checked without a device."""
    return "Gluon has no interpreter, and only a device can check what it computes"
