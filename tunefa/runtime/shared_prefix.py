"""The argument `shared_prefix` of attention over a cache: what it goes with."""

from __future__ import annotations

from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.runtime.argument_checks import check_flag
from tunefa.spec.workload_parts import MAX_HEAD_DIM


def check(
    asked: object,
    block_table: Tensor | None,
    window_left: int | None,
    k_descale: Tensor | None,
    head_dim: int,
) -> None:
    """Raises TunefaError where `asked`, the argument, is no bool, or is True in a call without a
    block table, with a window, over a cache in e4m3, or with a head_dim of latent attention."""
    check_flag("shared_prefix", asked)
    if not asked:
        return
    if block_table is None:
        raise TunefaError(
            "shared_prefix goes with a cache in pages, as sequences share pages: give a "
            "block_table, or leave shared_prefix out"
        )
    if window_left is not None:
        raise TunefaError(
            "shared_prefix with a window: the windows of sequences hide different parts of a "
            "prefix, so leave one of the two out"
        )
    if k_descale is not None:
        raise TunefaError(
            "shared_prefix over a cache in e4m3: no kernel serves it, so leave shared_prefix out"
        )
    if head_dim > MAX_HEAD_DIM:
        raise TunefaError(
            f"shared_prefix with a head_dim of {head_dim}: kernels that share a prefix serve up to "
            f"{MAX_HEAD_DIM}, so leave shared_prefix out"
        )
