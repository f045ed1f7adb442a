"""Bytes by count and by theory, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefa.errors import TunefaError
from tunefa.experiments import io_model
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.target import Target
from tunefa.spec.tiling import Tiling
from tunefa.spec.workload import Workload

H200 = Target.named("h200")
TILE = Tiling(
    block_m=128, block_n=64, columns=64, columns_v=64, warps=4, stages=2, copied_by_threads=False,
    max_registers=255, l2_section_heads=1, packed_heads=1, diagonal_n=64, warp_specialised=False,
)  # fmt: skip
CAUSAL = Workload.parse("b4_h32_q2048_d64_fp16_causal")
SCORES = 4 * 32 * 2048 * 2048 * 2
ROWS = 4 * 32 * 2048 * 64 * 2
"""The bytes of Q, of K, of V or of the output."""


def test_operators_write_five_matrices_and_read_five() -> None:
    found = io_model.standard(CAUSAL, H200.device)
    mask = 2048 * 2048
    # Q K^T, scale, copy, mask, softmax; and the output. On an H200 ncu read 4,267 MB and wrote
    # 4,228 MB without the copy, which is no kernel: four matrices each.
    assert found.written_bytes == 5 * SCORES + ROWS
    assert found.read_bytes == 5 * SCORES + 3 * ROWS + mask
    assert found.l2_bytes == found.hbm_bytes


def test_without_a_mask_there_are_two_operators_less() -> None:
    found = io_model.standard(replace(CAUSAL, causal=False), H200.device)
    assert found.hbm_bytes == 6 * SCORES + 4 * ROWS


def test_small_scores_stay_in_the_l2() -> None:
    small = Workload.parse("b1_h1_q1024_d64_fp16_full")
    found = io_model.standard(small, H200.device)
    row, scores = 1024 * 64 * 2, 1024 * 1024 * 2
    assert (found.read_bytes, found.written_bytes) == (3 * row, 3 * scores + row)
    assert found.l2_bytes == 6 * scores + 4 * row


def test_packed_sequences_have_no_operators() -> None:
    with pytest.raises(TunefaError, match="is packed"):
        io_model.standard(replace(CAUSAL, varlen=True), H200.device)


def test_a_fused_kernel_reads_its_inputs_once_where_the_l2_holds_k_and_v() -> None:
    found = io_model.fused(CAUSAL, H200.device, TILE)
    logsumexp = 4 * 32 * 2048 * 4
    assert (found.read_bytes, found.written_bytes) == (3 * ROWS, ROWS + logsumexp)
    # A tile of 128 queries reads 2, 4, ... 32 blocks of 64 keys: 272 blocks for 16 tiles.
    streamed = 272 * 64 * 4 * 32 * (64 + 64) * 2
    assert found.l2_bytes == ROWS + streamed + ROWS + logsumexp


def test_k_and_v_are_read_again_where_the_l2_is_too_small() -> None:
    device = replace(H200.device, l2_bytes=0)
    found = io_model.fused(replace(CAUSAL, causal=False), device, TILE)
    assert found.read_bytes == ROWS + 16 * 2 * ROWS  # 16 tiles read all keys and values


@pytest.mark.parametrize(
    ("workload", "keys"),
    [
        ("h1_q128_k100_d64_full", 100),
        ("h1_q256_k256_d64_causal", 128 + 256),
        ("h2_q128_k1024_d64_causal", 2 * 1024),
        ("h1_q256_k64_d64_causal", 64),  # the first 192 queries see no key
        ("h1_q512_k512_d64_causal_w64", 128 + 192 + 192 + 192),
        ("h1_q130_k640_d64_full", 2 * 640),
    ],
)
def test_keys_that_tiles_read(workload: str, keys: int) -> None:
    assert io_model.keys_read(Workload.parse(workload), TILE) == keys


def test_packed_heads_share_what_they_read() -> None:
    workload = Workload.parse("h8_kv2_q64_k512_d64_full")
    apart = io_model.keys_read(workload, TILE)
    together = io_model.keys_read(workload, replace(TILE, packed_heads=4))
    assert (apart, together) == (8 * 512, 2 * 2 * 512)


def test_the_terms_of_theorem_2() -> None:
    found = io_model.theory(CAUSAL, gpu(H200.arch))
    assert found.fast_elements == 233_472 // 2
    heads = 4 * 32 * 2
    assert found.standard_bytes == heads * (2048 * 64 + 2048**2)
    assert found.fused_bytes == pytest.approx(heads * 2048**2 * 64**2 / 116_736)
