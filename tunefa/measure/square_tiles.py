"""The memory of an NPU that square tiles need: by an often published formula, by the compiler.

The formula counts five tensors of tile x head_dim in 16 bits, 2 * 5 * tile * head_dim bytes, all in
the unified buffer (UB). The figures that are often printed beside it (20.5, 41.0, 81.9 and 163.8 kB
at head_dim 64) are half of what it gives. And on the 910B, Q, K and V are never in a UB: they go
from global memory to L1. The UB holds scores and probabilities (tile x tile) and the output (tile x
head_dim) in fp32, each vector core having half of the rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tunefa.compile import languages
from tunefa.compile.contract import CompileError
from tunefa.costmodel import npu as npu_model
from tunefa.measure.npu import as_compiled
from tunefa.spec.rounding import ceil_div
from tunefa.spec.target import Case
from tunefa.spec.trial import Resources
from tunefa.spec.workload import DTYPES, Workload

TILES = (64, 128, 256, 512)
TENSORS = 5


@dataclass(frozen=True)
class Tile:
    """One tile size, with BLOCK_M = BLOCK_N = `tile`."""

    tile: int
    loops: int
    """The number of steps as it is published: seqlen / tile, rounded up."""
    formula_bytes: int
    """The bytes of the UB by the formula."""
    fits: bool
    """Whether the compiler says that it fits."""
    reason: str
    """The reason that it does not fit; empty if it does."""
    ub_bytes: int | None
    """The bytes that the compiler plans in the UB of one vector core, or would need there."""
    l1_bytes: int | None
    l0c_bytes: int | None
    steps: int
    """The steps of the busiest core, over all heads and tiles."""
    modelled_us: float | None
    """The latency model's time; None for a tile that does not fit."""

    def to_data(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return asdict(self)


def table(case: Case, tiles: tuple[int, ...] = TILES) -> list[Tile]:
    """Compiles each tile, the other parameters as in the kernel's default config.

    Raises TunefaError where there is no compiler for the chip.
    """
    return [_tile(case, tile) for tile in tiles]


def formula_bytes(tile: int, workload: Workload) -> int:
    """The bytes of five tensors of tile x head_dim."""
    return DTYPES[workload.dtype] * TENSORS * tile * workload.head_dim


def _tile(case: Case, tile: int) -> Tile:
    workload, device = case.workload, case.device
    config = {**case.default(), "BLOCK_M": tile, "BLOCK_N": tile}
    resources, reason = Resources(), ""
    try:
        resources = languages.load(case.kernel.language).compile(case, config).resources
    except CompileError as error:
        resources, reason = error.resources or resources, str(error)
    tiling = as_compiled(case.npu_tiling(config), resources)
    return Tile(
        tile=tile,
        loops=ceil_div(workload.seqlen_k, tile),
        formula_bytes=formula_bytes(tile, workload),
        fits=not reason,
        reason=reason,
        ub_bytes=resources.ub_bytes,
        l1_bytes=resources.l1_bytes,
        l0c_bytes=resources.l0c_bytes,
        steps=npu_model.steps(workload, device.sms, tile, tile),
        modelled_us=None if reason else npu_model.time_us(workload, device, tiling),
    )
