"""The workload of the op `matmul`: one product of two matrices, its text form, its amount of work.

It has what every op's workload has for the rest of tunefa (see docs/contributing.md), and none of
the fields of attention.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunefa.errors import TunefaError, unknown
from tunefa.spec import dtype_names
from tunefa.spec.sizes import bad_size, parse_size, parts_of

OP = "matmul"
DTYPES: Mapping[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes of one element of A, B and C."""
LAYOUTS = ("nn", "nt", "tn", "tt")
"""The orders in which A and B are stored, as BLAS writes them: n (not transposed) is row by row, t
is column by column, so that the transpose is stored row by row. C is always stored row by row."""
_SIZES = ("m", "n", "k")
_PART = re.compile(r"([a-z]+)(-?[0-9].*)")


@dataclass(frozen=True, kw_only=True)
class Matmul:
    """One matrix product C = A B: A is (m, k), B is (k, n), C is (m, n), all of one dtype.

    Products are summed in fp32. For fp32 the tensor cores multiply in tf32, which has a mantissa of
    10 bits, as `torch.backends.cuda.matmul.allow_tf32` lets PyTorch do.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    layout: str = LAYOUTS[0]

    op = OP
    accuracy = "standard"
    """It has one accuracy: that of the dtype."""
    exp2_count = 0
    softcap = False
    tf32_products = 1
    """Products on the tensor cores for each product of fp32."""
    tensor_names = "A, B and C"
    smaller = "smaller matrices"

    def __post_init__(self) -> None:
        """Raises TunefaError if a field has a value that no kernel can serve."""
        for name, known in (("dtype", DTYPES), ("layout", LAYOUTS)):
            if getattr(self, name) not in known:
                raise unknown(name, str(getattr(self, name)), known)
        for name in _SIZES:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise bad_size(name, value)

    @classmethod
    def is_text(cls, text: str) -> bool:
        """Whether a text names a workload of this op."""
        return OP in text.strip().split("_")

    @classmethod
    def parse(cls, text: str) -> Matmul:
        """Returns the workload for a text such as `matmul_m4096_n4096_k1k_bf16_nt`.

        The parts have any order. Without n or k, these are as m. Raises TunefaError, which quotes
        `text`, if a part is unknown, not valid or given twice, or if `m` is missing.
        """
        try:
            parts = parts_of(text, _parse_part)
            parts.pop("op", None)
            if "m" not in parts:
                raise TunefaError("m is missing: give the number of rows of A and C, such as m4096")
            return cls(**{"n": parts["m"], "k": parts["m"], **parts})
        except TunefaError as error:
            raise TunefaError(f"workload {text!r}: {error}") from None

    def __str__(self) -> str:
        """Returns the canonical text, such as `matmul_m4096_n4096_k4096_bf16`."""
        parts = [OP, f"m{self.m}", f"n{self.n}", f"k{self.k}", self.dtype]
        return "_".join([*parts, self.layout] if self.layout != LAYOUTS[0] else parts)

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiplication and an addition for each product."""
        return 2 * self.m * self.n * self.k

    @property
    def io_bytes(self) -> int:
        """Bytes of A, B and C together, each moved once."""
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return elements * DTYPES[self.dtype]

    @property
    def dense_equivalent(self) -> Matmul:
        """The workload itself: only attention has packed sequences."""
        return self

    @property
    def is_aligned(self) -> bool:
        """Whether contiguous tensors have sizes and strides that are multiples of 16."""
        return all(getattr(self, name) % 16 == 0 for name in _SIZES)

    @property
    def family(self) -> tuple[object, ...]:
        """The properties that must be equal for a record of one workload to serve another. bf16 and
        fp16 are one family: only the names of instructions differ."""
        kind = "16 bits" if DTYPES[self.dtype] == 2 else self.dtype
        return OP, kind, self.layout

    def octaves_from(self, other: Matmul) -> float:
        """Returns the distance to another workload, in octaves (factors of two): the Euclidean
        distance of the logarithms of m, n and k, as tiles and pipelines depend on their ratios."""
        return math.hypot(
            *(math.log2(getattr(self, name) / getattr(other, name)) for name in _SIZES)
        )

    def env(self) -> dict[str, Any]:
        """Returns what expressions of a search space may read: each field, and `dtype_bytes`."""
        return {**self.__dict__, "dtype_bytes": DTYPES[self.dtype]}


def own(workload: object) -> Matmul:
    """Returns a workload as the Matmul that it is. Raises TypeError for one of another op."""
    if not isinstance(workload, Matmul):
        raise TypeError(f"{workload} is no {OP}")
    return workload


def _parse_part(part: str) -> tuple[str, Any]:
    """Returns the field that one part of the text sets, and its value."""
    if part == OP:
        return "op", part
    if (dtype := dtype_names.canonical(part)) in DTYPES:
        return "dtype", dtype
    if part in LAYOUTS:
        return "layout", part
    match = _PART.fullmatch(part)
    if match and match[1] in _SIZES:
        return match[1], parse_size(match[2], match[1])
    known = [OP, *(f"{name}<{name}>" for name in _SIZES), *DTYPES, *LAYOUTS]
    raise unknown("part", part, known)
