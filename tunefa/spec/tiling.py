"""The tiling of a config: all that a cost model knows of it. Each op has its own.

Kernels choose the names of their parameters. The `tiling:` section of a search space gives, for
each field here, an expression that computes it from a config of that kernel.

A tile is a block of query rows that one CTA (on NPUs, one core) computes; a step takes the tile
past one block of keys. An L2 section is a group of heads whose tiles run at the same time, so that
their K and V stay in the L2 cache (as in FlashAttention-3's scheduler).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from tunefa.errors import unknown


@dataclass(frozen=True)
class Tiling:
    """One config of a kernel for GPUs, as the cost model of GPUs sees it."""

    block_m: int
    """Query rows in a tile."""
    block_n: int
    """Keys in a step."""
    columns: int
    """head_dim, with the padding that the kernel adds."""
    columns_v: int
    """head_dim_v, with the padding that the kernel adds."""
    warps: int
    """Warps that compute; a producer is not counted."""
    stages: int
    """Buffers for blocks of K and of V: the block in use, and the blocks loaded ahead."""
    copied_by_threads: bool
    """Whether threads copy K and V with 16-byte cp.async; if not, TMA copies them."""
    max_registers: int
    """The most registers that a computing thread can have."""
    l2_section_heads: int
    """Heads of one L2 section."""
    packed_heads: int
    """Query heads that share one tile (GQA packing)."""
    diagonal_n: int
    """Keys of a step on the diagonal of the causal mask."""
    warp_specialised: bool
    """Whether one persistent CTA on each SM has a producer that copies, and consumer warpgroups of
    64 rows each. Consumers do not wait for one another, and overlap softmax and products."""

    @property
    def threads(self) -> int:
        """Threads of one CTA; a producer takes a whole warpgroup."""
        return 32 * (self.warps + (4 if self.warp_specialised else 0))


@dataclass(frozen=True)
class BackwardTiling:
    """One config of a kernel of attention's gradients for GPUs, as the cost model of these sees it.

    A tile of keys computes dK and dV of `block_n` keys of one KV head; its steps are the blocks of
    query rows of all heads of the group. dQ is added up in memory by these tiles, or computed by
    tiles of queries of its own, which repeat two of the products.
    """

    block_m: int
    """Query rows in a step of a tile of keys."""
    block_n: int
    """Keys in a tile of keys."""
    dq_block_m: int
    """Query rows in a tile of queries; 0 where the tiles of keys add to dQ in memory."""
    dq_block_n: int
    """Keys in a step of a tile of queries; 0 where there is none."""
    group_splits: int
    """CTAs that share the query heads of a tile of keys. Where they are more than one, each writes
    its dK and dV in fp32, and a launch after the main one adds them up."""
    columns: int
    """head_dim, with the padding that the kernel adds."""
    columns_v: int
    """head_dim_v, with the padding that the kernel adds."""
    warps: int
    """Warps that compute; a producer is not counted."""
    stages: int
    """Buffers for the blocks of a step: those in use, and those loaded ahead."""
    copied_by_threads: bool
    """Whether threads copy blocks with 16-byte cp.async; if not, TMA copies them."""
    max_registers: int
    """The most registers that a computing thread can have."""
    l2_section_heads: int
    """Heads of one L2 section."""
    kv_in_registers: bool
    """Whether K and V of a tile of keys stay in registers, as operands of products."""
    dq_parts: int
    """Warpgroups that share the columns of one block of dQ, so that each reads dS; 1 where a block
    of dQ is computed by one, or by tiles of queries."""
    warp_specialised: bool
    """Whether a producer copies, and consumer warpgroups do not wait for one another."""

    @property
    def threads(self) -> int:
        """Threads of one CTA; a producer takes a whole warpgroup."""
        return 32 * (self.warps + (4 if self.warp_specialised else 0))

    @property
    def adds_dq(self) -> bool:
        """Whether the tiles of keys add to dQ in memory, in fp32."""
        return self.dq_block_m == 0

    @property
    def in_two_passes(self) -> bool:
        """Whether the tiles of queries are a launch of their own, which comes first and sums up
        rowsum(dO * O) by itself."""
        return self.warp_specialised and not self.adds_dq


@dataclass(frozen=True)
class DecodeTiling:
    """One config of attention over a cache for GPUs, as the cost model of it sees it.

    The keys of a sequence are split among CTAs, each of which attends all query rows of a KV head
    to one split after the other; a second launch combines the splits, or the last CTA of each head.
    """

    block_m: int
    """Query rows in a tile, with padding."""
    block_n: int
    """Keys that a CTA computes at once."""
    columns: int
    """head_dim, with the padding that the kernel adds."""
    columns_v: int
    """head_dim_v, with the padding that the kernel adds."""
    warps: int
    """Warps of a CTA that compute."""
    copying_warps: int
    """Warps of a CTA that copy for the others."""
    blocks_ahead: float
    """Blocks of K and V that a CTA has on their way, without those that it computes with."""
    copied_by_threads: bool
    """Whether threads copy blocks with 16-byte cp.async; if not, TMA copies them."""
    by_wgmma: bool
    """Whether warpgroups multiply by WGMMA, all warps of a CTA one tile; if not, by mma.sync."""
    max_registers: int
    """The most registers that a thread can have."""
    ctas_per_sm: int
    """The most CTAs of an SM that are launched."""
    min_split_keys: int
    """The least keys of a split."""
    max_splits: int
    """The most splits of a sequence."""
    heights: int
    """The number of lengths of splits, each twice the one before, of which the kernel takes the
    best for the batch; 1 where splits depend on their own sequence alone."""
    last_cta_combines: bool
    """Whether the CTA that computes the last split of a KV head combines them; if not, a second
    launch does."""

    @property
    def threads(self) -> int:
        """Threads of one CTA."""
        return 32 * (self.warps + self.copying_warps)

    def splits(self, keys: int) -> list[tuple[int, int]]:
        """Returns (splits, keys of each) of a sequence that has so many visible keys; several, of
        which the kernel takes the best, if splits follow the batch."""
        share = -(-keys // self.max_splits)
        least = max(-(-share // self.block_n) * self.block_n, self.min_split_keys)
        lengths = [least << height for height in range(self.heights)]
        found = {max(1, -(-keys // each)): min(each, max(1, keys)) for each in reversed(lengths)}
        return sorted(found.items(), reverse=True)


@dataclass(frozen=True)
class MatmulTiling:
    """One config of a matrix product for GPUs, as the cost model of these sees it."""

    block_m: int
    """Rows of C in a tile."""
    block_n: int
    """Columns of C in a tile."""
    block_k: int
    """Columns of A, and rows of B, in a step."""
    warps: int
    stages: int
    """Buffers for blocks of A and of B: the block in use, and the blocks loaded ahead."""
    copied_by_threads: bool
    """Whether threads copy A and B with 16-byte cp.async; if not, TMA copies them."""
    max_registers: int
    """The most registers that a thread can have."""
    group_m: int
    """Rows of tiles that run at the same time, so that they share columns of B in the L2 cache."""

    @property
    def threads(self) -> int:
        """Threads of one CTA."""
        return 32 * self.warps


@dataclass(frozen=True)
class NpuTiling:
    """One config of a kernel for NPUs, as the latency model of NPUs sees it."""

    block_m: int
    """Query rows in a tile."""
    block_n: int
    """Keys in a step."""
    multibuffer: bool
    """Whether a step's K and V are loaded during the step before it."""
    ub_bytes: float
    """Bytes that it is expected to need of a vector core's UB; `l1_bytes`, `l0c_bytes` likewise."""
    l1_bytes: float
    l0c_bytes: float


AnyTiling = Tiling | BackwardTiling | DecodeTiling | MatmulTiling | NpuTiling
OneTiling = TypeVar("OneTiling", Tiling, BackwardTiling, DecodeTiling, MatmulTiling, NpuTiling)
"""The tiling of one op."""
KINDS: Mapping[tuple[str, str], type[AnyTiling]] = {
    ("nvidia", "fwd"): Tiling,
    ("nvidia", "bwd"): BackwardTiling,
    ("nvidia", "decode"): DecodeTiling,
    ("nvidia", "prefill"): Tiling,
    ("nvidia", "matmul"): MatmulTiling,
    ("huawei", "fwd"): NpuTiling,
}
"""The tiling of a space's kernel, by (vendor, op)."""
ORDER = ("l2_section_heads", "group_m")
"""The fields that only say in which order tiles run."""


def fields_of(vendor: str, op: str) -> tuple[str, ...]:
    """Returns the fields that the `tiling:` section of a search space must have.

    Raises TunefaError for an op that is not known, or that no chip of the vendor has a model for.
    """
    ops = [known for of, known in KINDS if of == vendor]
    if op not in ops:
        raise unknown(f"op on chips of {vendor}", op, ops)
    return tuple(field.name for field in fields(KINDS[vendor, op]))
