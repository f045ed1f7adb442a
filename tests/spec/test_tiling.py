"""tunefa/spec/tiling.py: the threads of a program, and what a space's `tiling` must say."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.tiling import (
    KINDS,
    BackwardTiling,
    DecodeTiling,
    MatmulTiling,
    NpuTiling,
    Tiling,
    fields_of,
)

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


def test_the_fields_of_a_vendor_and_an_op_are_those_of_its_tiling() -> None:
    assert set(KINDS.values()) == {Tiling, BackwardTiling, DecodeTiling, MatmulTiling, NpuTiling}
    for (vendor, op), kind in KINDS.items():
        assert list(fields_of(vendor, op)) == [field.name for field in fields(kind)]


def test_an_op_without_a_model_is_named() -> None:
    with pytest.raises(TunefaError, match=r"unknown op on chips of huawei 'matmul'.*known: fwd"):
        fields_of("huawei", "matmul")
    with pytest.raises(TunefaError, match=r"unknown op on chips of nvidia 'matmal': did you mean"):
        fields_of("nvidia", "matmal")


def test_tiles_of_keys_add_to_dq_unless_it_has_tiles_of_its_own() -> None:
    case = Case.from_names("attention_bwd_triton", "bwd_q4096_d128", "sm90")
    tiling = case.backward_tiling(case.default())
    assert not tiling.adds_dq and replace(tiling, dq_block_m=0, dq_block_n=0).adds_dq
    assert tiling.threads == 32 * case.default()["num_warps"]
    assert replace(tiling, warp_specialised=True).threads == tiling.threads + 128


def test_threads_of_a_matrix_product_are_those_of_its_warps() -> None:
    case = Case.from_names("matmul_triton", "matmul_m4096", "sm90")
    assert case.matmul_tiling({**case.default(), "num_warps": 4}).threads == 128


@pytest.mark.parametrize(
    "name", [name for name in kernels.names() if not kernels.load(name).is_library]
)
def test_every_kernel_says_all_of_its_fields(name: str) -> None:
    space = kernels.load(name).space
    arch = {"nvidia": "sm90", "huawei": "ascend910b3"}[space.vendor]
    examples = {"fwd": "q4096_d128", "bwd": "bwd_q4096_d128", "decode": "decode_k4096_d128",
                "prefill": "q4096_d128_page64", "matmul": "matmul_m4096"}  # fmt: skip
    workload = examples[space.op]
    case = Case.from_names(name, workload, arch)
    if why := case.why_not():
        other = "decode_k4096_mla" if "mla" in name else f"{workload}_fp16"
        other = "decode_k4096_page64_prefix" if "prefix" in name else other
        other = "bwd_q4096_d192" if name == "attention_bwd_two_pass_cuda_sm90" else other
        case = Case.from_names(name, other, arch)
        assert case.why_not() is None, why
    tilings: dict[type, Any] = {
        Tiling: case.tiling,
        BackwardTiling: case.backward_tiling,
        DecodeTiling: case.decode_tiling,
        MatmulTiling: case.matmul_tiling,
        NpuTiling: case.npu_tiling,
    }
    made = tilings[KINDS[space.vendor, space.op]](case.default())
    assert made.block_m > 0 and made.block_n > 0
