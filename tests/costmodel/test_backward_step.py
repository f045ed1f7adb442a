"""tunefa/costmodel/backward_step.py: the work of a step, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefa.costmodel import backward_step as model
from tunefa.costmodel.gpu import MMA_SYNC_RATE_ON_HOPPER, Cut
from tunefa.spec import arch_catalog as archs
from tunefa.spec.tiling import BackwardTiling
from tunefa.spec.workload import Workload

SM80, SM90 = (archs.gpu(archs.load(name)) for name in ("sm80", "sm90"))
D128, D64 = (Workload.parse(f"bwd_q4096_{text}") for text in ("d128", "d64"))
ADDING = BackwardTiling(
    block_m=64, block_n=128, dq_block_m=0, dq_block_n=0, group_splits=1, columns=128,
    columns_v=128, warps=8, stages=2, copied_by_threads=False, max_registers=240,
    l2_section_heads=1, kv_in_registers=False, dq_parts=2, warp_specialised=True,
)  # fmt: skip
APART = replace(
    ADDING, dq_block_m=128, dq_block_n=64, dq_parts=1, max_registers=255, warp_specialised=False
)
KIB = 1024


def test_a_step_at_head_dim_128_by_hand() -> None:
    work = model.of_keys(D128, SM90, ADDING)
    assert work.tensor == 5 * 2 * 64 * 128 * 128 / 4096 == 2560
    loads = 32 * KIB  # Q and dO
    scores = 64 * KIB + 64 * KIB  # S and dP: K and V once, Q and dO by each warpgroup
    sums = 32 * KIB + 32 * KIB  # dV and dK: dO and Q by each warpgroup
    dq = 16 * KIB + 32 * KIB + 32 * KIB + 64 * KIB  # dS written, read twice; K; dQ staged and read
    assert work.smem == loads + scores + sums + dq == 368 * KIB


def test_a_step_at_head_dim_64_with_k_and_v_in_registers_by_hand() -> None:
    tiling = replace(ADDING, columns=64, columns_v=64, kv_in_registers=True, dq_parts=1)
    work = model.of_keys(D64, SM90, tiling)
    assert work.tensor == 1280
    assert work.smem == (16 + 32 + 32 + 32 + 16 + 16 + 32 - 16) * KIB == 160 * KIB


def test_tiles_of_queries_have_three_products_and_those_of_keys_four() -> None:
    keys, queries = model.of_keys(D128, SM90, APART), model.of_queries(D128, SM90, APART)
    assert (keys.products, queries.products) == ((2, 2), (2, 1))
    assert keys.tensor == 4 * 2 * 64 * 128 * 128 / 4096
    assert queries.tensor == 3 * 2 * 128 * 64 * 128 / 4096
    assert keys.stored == queries.stored == 0


def test_wide_values_count_in_the_products_that_they_are_in() -> None:
    wide = replace(ADDING, columns_v=256)
    work, narrow = model.of_keys(D128, SM90, wide), model.of_keys(D128, SM90, ADDING)
    assert work.tensor / narrow.tensor == (3 * 128 + 2 * 256) / (5 * 128)


def test_mma_sync_is_slower_and_reads_operands_once_per_warp() -> None:
    few = replace(APART, block_n=32, warps=2)
    assert not model.uses_wgmma(SM90, few) and model.uses_wgmma(SM90, APART)
    work = model.of_keys(D128, SM90, few)
    assert work.tensor == pytest.approx(4 * 2 * 64 * 32 * 128 / 4096 / MMA_SYNC_RATE_ON_HOPPER)
    loaded = 64 * 256 * 2
    assert work.smem == loaded * (1 + 2 * 2) + 32 * 256 * 2
    assert not model.uses_wgmma(SM80, APART)


def test_fp32_is_three_products_in_tf32() -> None:
    exact = model.of_keys(Workload.parse("bwd_q4096_d128_fp32"), SM90, APART)
    assert exact.tensor == 6 * model.of_keys(D128, SM90, APART).tensor


def test_masks_and_soft_caps_take_slots() -> None:
    plain, half = Cut(1, 8.0, 0.0, 8.0), Cut(1, 8.0, 4.0, 8.0)
    assert model.slots_per_score(D128, half) == model.slots_per_score(D128, plain) + 1.5
    capped = replace(D128, softcap=True)
    assert model.slots_per_score(capped, plain) == model.slots_per_score(D128, plain) + 4


def test_cycles_of_a_step_by_pipe() -> None:
    work = model.of_keys(D128, SM90, ADDING)
    found = model.cycles(work, SM90, ADDING, 8, (7.5, 1))
    assert found["exp2"] == 64 * 128 / 16
    assert found["smem"] == 2944
    assert found["issue"] == (7.5 * 64 * 128 + (16 + 32) * KIB / 16) / 128
    assert found["spills"] == 3 * 8 * 256 / 128
    copied = model.cycles(work, SM90, replace(ADDING, copied_by_threads=True), 0, (7.5, 1))
    assert copied["issue"] - found["issue"] == 8 * 32 * KIB / 16 / 128 and copied["spills"] == 0
