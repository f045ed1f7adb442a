"""The op `matmul`: C = A B. Its tensors, its inputs, its reference and the limits of its errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunefa.compile.contract import LaunchSpec
from tunefa.measure.comparison import Comparison, Row
from tunefa.spec.matmul import Matmul, own
from tunefa.spec.target import Case
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # they import PyTorch, which takes seconds
    import torch
    from torch import Tensor

    from tunefa.measure.hostile import Kind

OUTPUTS = slice(2, 3)
"""C; A and B are before it."""
NAMES = ("c",)
OUT_ROUNDING = {"bf16": 2**-9, "fp16": 2**-12, "fp32": 2**-10}
"""The largest relative error of an element of C whose terms have one sign: half a unit in the last
place of the dtype. For fp32 it is that of the inputs, which tf32 cuts to 10 bits: 2^-11 on average
for each of two factors, which do not cancel."""
TERM_ROUNDING = {"bf16": 2**-16, "fp16": 2**-16, "fp32": 2**-10}
"""The relative error of each term of a sum, independent of the others. 16-bit inputs have exact
products in fp32, and it stands for the rounding of the sums; fp32 inputs are cut to tf32."""
ROW_MARGIN = 2.0
"""A row's limit is this many times what rounding makes."""
TOLERANCE = {"bf16": 4e-3, "fp16": 5e-4, "fp32": 1.5e-3}
"""The largest relative error over all rows where PyTorch's is no measure: in the interpreter, and
for fp32, which PyTorch does not compute in tf32 unless it is told to. It is twice what rounding
makes, or one and a half times for tf32."""
LEAST_NORM = 1e-30
_MARGIN_COLUMNS = 16
"""Elements of NaN behind each stored row; 16 of them leave rows aligned."""
PATTERNS = (
    "",
    "A is positive",
    "A has an outlier",
    "the terms of the sum cancel",
    "A is zero but for one element",
)
"""The patterns of rows of A. Columns of B have one sign, or outliers, or neither, in turn."""


def ragged(workload: Workload, config: Config) -> Workload:
    """A small workload of the same layout with sizes that no tile divides, as far as the sizes of
    `workload` allow: where these are multiples of 16, so are those, as both must run the same
    binary. There are more steps along k than stages.
    """
    asked = own(workload)

    def beyond(block: int, blocks: int) -> int:
        part = block // 2 // 16 * 16 if asked.is_aligned else block // 2 + 1
        return blocks * block + part

    block_k = int(config["BLOCK_K"])
    steps = max(3, int(config["num_stages"]) + 1)
    whole = asked.k % block_k == 0
    m, n = (beyond(int(config[name]), 2) for name in ("BLOCK_M", "BLOCK_N"))
    return Workload.parse(
        str(Matmul(
            m=m, n=n, k=steps * block_k if whole else beyond(block_k, steps),
            dtype=asked.dtype, layout=asked.layout,
        ))
    )  # fmt: skip


def launch_spec(case: Case, config: Config) -> LaunchSpec:
    """The host side needs the config alone: a product has no scale."""
    return LaunchSpec(case, config, 1.0)


def kinds_of_finalists(workload: Workload) -> tuple[Kind, ...]:
    """One launch shows all kinds of inputs: each row of A has one."""
    return ("mixed",)


def tensors(workload: Workload, device: str, seed: int | None = None) -> tuple[Any, ...]:
    """Returns fresh (a, b, c) on `device`: normal inputs, and an output full of NaN.

    a is (m, k), b (k, n) and c (m, n). Where the layout has a t, the tensor is the transpose of a
    contiguous one.
    """
    import torch

    asked, generator = own(workload), torch.Generator(device)
    dtype = _dtypes()[asked.dtype]
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)

    def normal(rows: int, columns: int, letter: str) -> Any:
        shape = (columns, rows) if letter == "t" else (rows, columns)
        made = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        return made.t() if letter == "t" else made

    a = normal(asked.m, asked.k, asked.layout[0])
    b = normal(asked.k, asked.n, asked.layout[1])
    return a, b, torch.full((asked.m, asked.n), math.nan, device=device, dtype=dtype)


def _dtypes() -> dict[str, torch.dtype]:
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def inputs(
    workload: Workload, kind: Kind, device: str
) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """Returns the tensors, and the memory of A, B and C with what surrounds them."""
    made = tensors(workload, device, seed=0)
    if kind != "normal":
        _change(*made[:2])
    whole = [_surrounded(each, is_input=i < 2) for i, each in enumerate(made)]
    return tuple(inner for inner, _ in whole), tuple(memory for _, memory in whole)


def _change(a: Tensor, b: Tensor) -> None:
    """Gives each row of A its pattern, and columns of B theirs."""
    k = a.shape[1]
    for number, pattern in enumerate(PATTERNS):
        rows = a[number :: len(PATTERNS)]
        if pattern == "A is positive":
            rows.copy_(0.5 + 0.5 * rows.abs())
        elif pattern == "A has an outlier":
            rows[:, k // 3] *= 30.0
        elif pattern == "the terms of the sum cancel":
            half = k // 2
            rows[:, half : 2 * half] = -rows[:, :half]
        elif pattern:
            kept = rows[:, k - 1].clone()
            rows.zero_()
            rows[:, k - 1] = kept
    b[:, 1::3] = 0.5 + 0.5 * b[:, 1::3].abs()
    b[:, 2::37] *= 30.0
    _avoid_overflow(a, b)


def _avoid_overflow(a: Tensor, b: Tensor) -> None:
    """Scales B by a power of two, where C would exceed the largest number of its dtype.

    In fp16 a positive row times a positive column of outliers sums to 24 k, which is Inf from
    k = 2,700 on.
    """
    import torch

    largest = torch.finfo(b.dtype).max
    if largest > 1e30:  # fp32, and bf16, which has its exponents
        return
    peak = float((a.float() @ b.float()).abs().max())
    if peak > 0.9 * largest:
        b.mul_(2.0 ** math.floor(math.log2(0.9 * largest / peak)))


def _surrounded(matrix: Tensor, is_input: bool) -> tuple[Tensor, Tensor]:
    """Returns a copy of a matrix, stored as it is, and its whole memory, which is NaN around the
    copy; around inputs, every second row is Inf."""
    from tunefa.measure.hostile import MARGIN

    transposed = matrix.stride(0) == 1 and matrix.stride(1) != 1
    stored = matrix.t() if transposed else matrix
    rows, columns = stored.shape
    memory = stored.new_full((rows + 2 * MARGIN, columns + _MARGIN_COLUMNS), math.nan)
    if is_input:
        memory[1::2] = math.inf
    inner = memory[MARGIN : MARGIN + rows, :columns]
    inner.copy_(stored)
    return (inner.t() if transposed else inner), memory


@dataclass(frozen=True)
class ExpectedProduct:
    """The product of the reference, and how far each row may be from it."""

    workload: Workload
    out: Tensor
    """(m, n), fp32 or fp64."""
    limits: Tensor
    """The largest ||C - reference|| of each row: (m,)."""
    norms: Tensor
    """||reference|| of each row: (m,)."""
    mixed: bool
    """Whether rows of A have patterns."""

    @property
    def bytes(self) -> int:
        """Bytes of device memory."""
        each = (self.out, self.limits, self.norms)
        return sum(tensor.numel() * tensor.element_size() for tensor in each)

    def compare(self, *outputs: Tensor) -> Comparison:
        """Compares a kernel's C. Waits for the device once."""
        import torch

        off = self._off(outputs[0]).nan_to_num(math.inf, math.inf)
        place = (off / self.limits).argmax()
        chosen = [(each / self.norms)[place].double() for each in (off, self.limits)]
        found = torch.stack([place.double(), *chosen, self._error(off)]).tolist()
        row, error, limit, overall = int(found[0]), *found[1:]
        pattern = PATTERNS[row % len(PATTERNS)] if self.mixed else ""
        worst = Row("output", f"row {row}", error, limit, pattern)
        least = TOLERANCE[self.workload.dtype]
        return Comparison(overall, 0.0, self.workload, least, row=worst, has_lse=False)

    def error(self, out: Tensor) -> float:
        """The relative error of an output over all rows."""
        return float(self._error(self._off(out)))

    def _off(self, out: Tensor) -> Tensor:
        """||out - reference|| of each row."""
        off: Tensor = (out.to(self.out.dtype) - self.out).norm(dim=1)
        return off

    def _error(self, off: Tensor) -> Tensor:
        error: Tensor = off.norm() / self.norms.norm()
        return error.double()


def expected(
    workload: Workload, kind: Kind, made: tuple[Any, ...], dtype: torch.dtype
) -> ExpectedProduct:
    """Computes the product in `dtype`, and the limits of its rows.

    The terms a_ik b_kj of an element have independent errors of TERM_ROUNDING, so these move the
    row i by about TERM_ROUNDING * sqrt(sum over k of a_ik^2 ||b_k||^2). The rest is relative to the
    row.
    """
    a, b = (each.to(dtype) for each in made[:2])
    out, kind_of = a @ b, own(workload).dtype
    spread = (a.square() @ b.square().sum(dim=1)).sqrt()
    norms = out.norm(dim=1)
    limits = ROW_MARGIN * (TERM_ROUNDING[kind_of] * spread + OUT_ROUNDING[kind_of] * norms)
    least = LEAST_NORM
    return ExpectedProduct(
        workload, out, limits.clamp_min(least), norms.clamp_min(least), kind != "normal"
    )


def limit(
    workload: Workload, kind: Kind, made: tuple[Any, ...], expected: ExpectedProduct
) -> float:
    """Returns twice the error of `torch.mm` on these inputs; for fp32 the tolerance."""
    import torch

    dtype = own(workload).dtype
    if dtype == "fp32":
        return TOLERANCE[dtype]
    return max(2.0 * expected.error(torch.mm(*made[:2])), OUT_ROUNDING[dtype])
