"""Lets Triton's interpreter multiply bf16, in processes of tests that use it directly.

TRITON_INTERPRET=1 must be set before Triton is imported.
"""

from __future__ import annotations

import os
from typing import Any

from tunefa.compile import triton_interpreter


def prepare() -> None:
    """Changes the interpreter of this process."""
    assert os.environ["TRITON_INTERPRET"] == "1"
    triton_interpreter.quicken()
    _let_it_multiply_bf16()


def _let_it_multiply_bf16() -> None:
    """The interpreter keeps bf16 in uint16 and multiplies these as integers (triton-lang/triton
    issue 11584, closed as not supported): widens them to fp32 first, which changes no value."""
    import numpy
    import triton.language as tl
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    multiply = builder.create_dot

    def widened(matrix: Any) -> Any:
        if matrix.dtype.scalar != tl.bfloat16:
            return matrix
        bits = matrix.data.astype(numpy.uint32) << 16  # bf16 is the upper half of an fp32
        return interpreter.TensorHandle(bits.view(numpy.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, widened(a), widened(b), *rest)

    builder.create_dot = create_dot
