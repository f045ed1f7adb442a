"""tunefa/spec/tiling.py: the threads of a program, and what a space's `model` must say."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.tiling import FIELDS, NpuTiling, Tiling

TILING = Tiling(
    block_m=64, block_n=64, columns=64, columns_v=64, warps=8, stages=2, copied_by_threads=False,
    max_registers=255, l2_section_heads=1, packed_heads=1, diagonal_n=64, warp_specialised=False,
)  # fmt: skip


@pytest.mark.parametrize(("warps", "specialised", "threads"), [
    (1, False, 32), (4, False, 128), (8, False, 256), (4, True, 256), (8, True, 384),
])  # fmt: skip
def test_a_producer_is_a_warpgroup_more(warps: int, specialised: bool, threads: int) -> None:
    assert replace(TILING, warps=warps, warp_specialised=specialised).threads == threads


def test_threads_are_those_that_a_kernel_is_launched_with() -> None:
    """The CUDA kernel says so itself, so its `variant` is the other source."""
    case = Case.from_names("attention_fwd_cuda_sm90", "q4096_d128", "sm90")
    default = case.default()
    variant = case.kernel.module.variant(case.workload, default, True)
    assert case.tiling(default).threads == variant["threads"]


def test_the_fields_of_a_vendor_are_those_of_its_tiling() -> None:
    assert set(FIELDS) == {"nvidia", "huawei"}
    for vendor, kind in (("nvidia", Tiling), ("huawei", NpuTiling)):
        assert list(FIELDS[vendor]) == [field.name for field in fields(kind)]


@pytest.mark.parametrize("name", kernels.names())
def test_every_kernel_says_all_of_its_vendors_fields(name: str) -> None:
    vendor = kernels.load(name).space.vendor
    arch = {"nvidia": "sm90", "huawei": "ascend910b3"}[vendor]
    case = Case.from_names(name, "q4096_d128", arch)
    if why := case.why_not():
        case = Case.from_names(name, "q4096_d128_fp16", arch)
        assert case.why_not() is None, why
    made = case.tiling(case.default()) if vendor == "nvidia" else case.npu_tiling(case.default())
    assert made.block_m > 0 and made.block_n > 0
