"""tunefa/costmodel/occupancy.py against cases worked out by hand by the rules of cuda_occupancy.h.

Every limit also agreed with the header itself (CUDA 13.0, compiled) on 20,000 random cases an arch.
"""

from __future__ import annotations

import pytest

from tunefa.costmodel.occupancy import Occupancy, occupancy
from tunefa.spec import arch_catalog as archs

KIB = 1024
SM90 = archs.gpu(archs.load("sm90"))


def _limits(name: str, registers: int, smem_bytes: int, threads: int) -> tuple[int, int, int, int]:
    """Limits by threads, registers, shared memory and blocks."""
    found = occupancy(archs.gpu(archs.load(name)), registers, smem_bytes, threads)
    assert found.blocks_per_sm == min(found.limits.values()) == found.limits[found.limiter]
    assert list(found.limits) == ["threads", "registers", "smem", "blocks"]
    return tuple(found.limits.values())  # type: ignore[return-value]


def test_a_typical_attention_block_on_hopper() -> None:
    # 8 warps: 64 / 8 = 8 by threads. 128 x 32 = 4096 registers per warp; a partition of 16384 holds
    # 4 warps, an SM 16, which is 2 blocks. (96 + 1) KiB = 99328: 233472 / 99328 = 2.
    assert _limits("sm90", 128, 96 * KIB, 256) == (8, 2, 2, 32)
    assert occupancy(SM90, 128, 96 * KIB, 256).limiter == "registers"


def test_the_block_of_the_explain_example_fits_twice() -> None:
    # Q, K and V tiles of 128 x 64 bf16: 3 x 16 KiB = 48 KiB, plus 1 KiB reserved: 50176 bytes.
    # sm90: 233472 / 50176 = 4; sm80: 167936 / 50176 = 3; sm89: 102400 / 50176 = 2.
    assert [_limits(each, 32, 48 * KIB, 128)[2] for each in ("sm90", "sm80", "sm89")] == [4, 3, 2]
    # With 49.5 KiB, 51712 bytes are taken and sm89's 102400 hold one.
    assert _limits("sm89", 32, 49 * KIB + 512, 128)[2] == 1


@pytest.mark.parametrize("name", ["sm80", "sm86", "sm87", "sm89", "sm90", "sm100", "sm120"])
def test_the_whole_opt_in_fits_once_and_a_byte_more_never(name: str) -> None:
    most = archs.gpu(archs.load(name)).smem_per_block_bytes
    assert _limits(name, 32, most, 128)[2] == 1
    assert _limits(name, 32, most + 1, 128)[2] == 0
    assert occupancy(archs.gpu(archs.load(name)), 32, most + 1, 128).blocks_per_sm == 0


def test_shared_memory_is_taken_in_units_of_128_bytes() -> None:
    # sm89: (9216 + 1024) x 10 = 102400 exactly; one byte more takes 10368, and 102400 / 10368 = 9.
    assert _limits("sm89", 16, 9216, 32)[2] == 10
    assert _limits("sm89", 16, 9217, 32)[2] == 9
    # Without any, the reserved KiB still counts: 100 blocks.
    assert _limits("sm89", 16, 0, 32)[2] == 100


def test_registers_are_taken_in_units_of_8_per_thread() -> None:
    # 64 x 32 = 2048 per warp: 8 warps per partition, 32 per SM, 8 blocks of 4 warps.
    assert _limits("sm90", 64, 0, 128)[1] == 8
    # 65 is rounded up to 72: 2304 per warp, 7 warps per partition, 28 per SM: 7 blocks, as for 72.
    assert _limits("sm90", 65, 0, 128)[1] == 7
    assert _limits("sm90", 72, 0, 128)[1] == 7


def test_a_warp_does_not_straddle_partitions() -> None:
    # 168 x 32 = 5376 per warp. A file of 65536 would hold 12.19 warps, each partition 3.05, so 12
    # either way; 216 x 32 = 6912: 9.48 by the file, but 2.37 by the partition, so 8 and not 9.
    assert _limits("sm90", 168, 0, 32)[1] == 12
    assert _limits("sm90", 216, 0, 32)[1] == 8


def test_255_registers_are_two_warps_per_partition() -> None:
    # 255 is rounded up to 256: 8192 per warp, 2 per partition, 8 per SM.
    assert _limits("sm90", 255, 0, 256)[1] == 1
    # 9 warps do not fit; and the launch check rounds them to 12, 12 x 8192 > 65536.
    assert _limits("sm90", 255, 0, 288)[1] == 0


def test_the_launch_check_rounds_warps_up_to_all_partitions() -> None:
    # 240 x 32 = 7680 per warp, so 8 warps per SM. A block of 5 warps: checked as 8 x 7680 = 61440,
    # which passes, and one block fits; of 9 warps: 12 x 7680 = 92160, refused.
    assert _limits("sm80", 240, 0, 160)[1] == 1
    assert _limits("sm80", 240, 0, 288)[1] == 0


def test_more_registers_than_a_thread_can_have_is_no_block() -> None:
    assert _limits("sm90", 256, 0, 32)[1] == 0


def test_threads_count_in_whole_warps() -> None:
    # 33 threads are 2 warps: 64 / 2 = 32 on sm90, 48 / 2 = 24 on sm89.
    assert _limits("sm90", 16, 0, 33)[0] == 32
    assert _limits("sm89", 16, 0, 33)[0] == 24
    # By registers too: 255 leave room for 8 warps, which are 4 blocks of 33 threads, and 8 of 32.
    assert [_limits("sm90", 255, 0, threads)[1] for threads in (32, 33, 64, 65)] == [8, 4, 4, 2]
    # 1024 threads are 32 warps: 48 / 32 = 1 on sm89, where a third of the SM stays empty.
    assert _limits("sm89", 16, 0, 1024)[0] == 1
    assert _limits("sm90", 16, 0, 1024)[0] == 2
    assert _limits("sm90", 16, 0, 1025)[0] == 0


@pytest.mark.parametrize(
    ("name", "blocks"), [("sm80", 32), ("sm86", 16), ("sm87", 16), ("sm89", 24)]
)
def test_small_blocks_meet_the_limit_on_blocks(name: str, blocks: int) -> None:
    # One warp of 16 registers and no shared memory: 64 or 48 blocks by threads, 128 by registers.
    found = occupancy(archs.gpu(archs.load(name)), 16, 0, 32)
    assert (found.blocks_per_sm, found.limiter) == (blocks, "blocks")
    assert found.limits["registers"] == 128


def test_the_limiter_is_named() -> None:
    assert occupancy(SM90, 32, 0, 1024).limiter == "threads"  # 2, 2 by registers too
    assert occupancy(SM90, 168, 0, 384).limiter == "registers"  # 12 warps: 1
    assert occupancy(SM90, 64, 200 * KIB, 128).limiter == "smem"
    assert occupancy(SM90, 32, 0, 1024) == Occupancy(
        2, {"threads": 2, "registers": 2, "smem": 228, "blocks": 32}, "threads"
    )


@pytest.mark.parametrize(
    ("registers", "smem_bytes", "threads"), [(0, 0, 32), (32, -1, 32), (32, 0, 0)]
)
def test_what_no_kernel_has_is_a_bug_of_the_caller(
    registers: int, smem_bytes: int, threads: int
) -> None:
    with pytest.raises(ValueError, match="no kernel has"):
        occupancy(SM90, registers, smem_bytes, threads)
