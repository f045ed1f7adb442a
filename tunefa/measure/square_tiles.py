"""Square tiles against an NPU's memories: a formula that is often published, and the compiler.

The formula counts five tensors of tile x head_dim in 16 bits, 2 * 5 * tile * head_dim bytes, all in
the UB. The figures that are often printed beside it (20.5, 41.0, 81.9 and 163.8 kB at head_dim 64)
are half of what it gives. And Q, K and V never are in a UB on the 910B: they go from memory to L1,
while scores, probabilities and output, which do fill it, are tile x tile and tile x head_dim in
fp32, of half of the rows for each of two vector cores.
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
    """BLOCK_M = BLOCK_N = `tile`."""

    tile: int
    loops: int
    """As it is published: seqlen / tile, rounded up."""
    formula_bytes: int
    """What the formula says of the UB."""
    fits: bool
    """Whether the compiler says that it fits."""
    reason: str
    """Why it does not."""
    ub_bytes: int | None
    """What the compiler plans, or asks for; of one vector core."""
    l1_bytes: int | None
    l0c_bytes: int | None
    steps: int
    """Of the busiest core, over all heads and tiles."""
    modelled_us: float | None
    """By the law of time; None for a tile that does not fit."""

    def to_data(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def table(case: Case, tiles: tuple[int, ...] = TILES) -> list[Tile]:
    """Each tile, compiled with all else as in the kernel's default.

    Raises TunefaError where there is no compiler for that chip.
    """
    return [_tile(case, tile) for tile in tiles]


def formula_bytes(tile: int, workload: Workload) -> int:
    """Five tensors of tile x head_dim."""
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
