"""How one program of a kernel cuts up its work: what the time model knows of a config.

Kernels name their parameters as they like; the section `model` of a space says, in expressions,
what each of these fields is for a config of that kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Tiling:
    """One config, as the time model sees it."""

    block_m: int
    """Query rows of a tile."""
    block_n: int
    """Keys of a step."""
    columns: int
    """head_dim as it is multiplied, what the kernel pads it by included."""
    columns_v: int
    """The same of head_dim_v."""
    warps: int
    """Those that compute."""
    stages: int
    """Blocks of K and of V under way, the one that is worked on included."""
    copied_by_threads: bool
    """Whether threads copy K and V, 16 bytes at a time; else TMA does."""
    max_registers: int
    """What a thread that computes can have."""
    l2_section_heads: int
    """Heads whose tiles run at the same time."""
    packed_heads: int
    """Query heads of one tile."""
    diagonal_n: int
    """Keys of a step where the causal mask begins."""
    warp_specialised: bool
    """Whether one program stays on each SM and works through tiles, in which a producer of its own
    copies, and each warpgroup computes 64 rows, waits for no other and overlaps its softmax with
    its products."""

    @property
    def threads(self) -> int:
        """Of one program; a producer is given a whole warpgroup."""
        return 32 * (self.warps + (4 if self.warp_specialised else 0))


@dataclass(frozen=True)
class NpuTiling:
    """One config of a kernel for NPUs, as the law of time and estimates see it."""

    block_m: int
    """Query rows of a tile."""
    block_n: int
    """Keys of a step."""
    multibuffer: bool
    """Whether a step's keys and values arrive during the step before it."""
    ub_bytes: float
    """What it is expected to need of a vector core's UB, and of the others."""
    l1_bytes: float
    l0c_bytes: float


FIELDS = {
    "nvidia": tuple(field.name for field in fields(Tiling)),
    "huawei": tuple(field.name for field in fields(NpuTiling)),
}
"""By vendor of the chips, what a space's `model` must say."""
