"""tunefa/spec/arch.py and arch_catalog.py over every file: limits, peaks, names that find them."""

from __future__ import annotations

import pickle
from dataclasses import fields

import pytest

from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec.arch import Arch, Device

NAMES = ["sm80", "sm86", "sm87", "sm89", "sm90", "sm100", "sm120"]
DEVICES = [(each, device) for each in NAMES for device in archs.load(each).devices]

# Dense peaks in TFLOP/s (int8: TOP/s) with fp32 accumulation, from data sheets and whitepapers.
PUBLISHED: dict[str, dict[str, float]] = {
    "NVIDIA A100-SXM4-80GB": {"bf16": 312, "fp16": 312, "tf32": 156, "int8": 624},
    "NVIDIA A100-SXM4-40GB": {"bf16": 312, "fp16": 312, "tf32": 156, "int8": 624},
    "NVIDIA A100 80GB PCIe": {"bf16": 312, "fp16": 312, "tf32": 156, "int8": 624},
    "NVIDIA A100-PCIE-40GB": {"bf16": 312, "fp16": 312, "tf32": 156, "int8": 624},
    "NVIDIA GeForce RTX 3090": {"bf16": 71, "fp16": 71, "tf32": 35.6, "int8": 284},
    "NVIDIA A10": {"bf16": 125, "fp16": 125, "tf32": 62.5, "int8": 250},
    "NVIDIA A40": {"bf16": 149.7, "fp16": 149.7, "tf32": 74.8, "int8": 299.3},
    "NVIDIA RTX A6000": {"bf16": 154.8, "fp16": 154.8, "tf32": 77.4, "int8": 309.7},
    "Orin": {"int8": 85},
    "NVIDIA GeForce RTX 4090": {"bf16": 165.2, "tf32": 82.6, "e4m3": 330.3, "int8": 660.6},
    "NVIDIA L4": {"bf16": 121, "fp16": 121, "tf32": 60, "e4m3": 242.5, "int8": 242.5},
    "NVIDIA L40S": {"bf16": 362, "fp16": 362, "tf32": 183, "e4m3": 733, "int8": 733},
    "NVIDIA RTX 6000 Ada Generation": {"bf16": 364.2, "tf32": 182.1, "e4m3": 728.5, "int8": 728.5},
    "NVIDIA H100 80GB HBM3": {"bf16": 989.4, "tf32": 494.7, "e4m3": 1978.9, "int8": 1978.9},
    "NVIDIA H100 PCIe": {"bf16": 756, "tf32": 378, "e4m3": 1513, "int8": 1513},
    "NVIDIA H100 NVL": {"bf16": 835.5, "tf32": 417.5, "e4m3": 1670.5, "int8": 1670.5},
    "NVIDIA H200": {"bf16": 989.5, "tf32": 494.5, "e4m3": 1979, "int8": 1979},
    "NVIDIA H200 NVL": {"bf16": 835.5, "tf32": 417.5, "e4m3": 1670.5, "int8": 1670.5},
    "NVIDIA GH200 480GB": {"bf16": 990, "tf32": 494, "e4m3": 1979, "int8": 1979},
    "NVIDIA GH200 144G HBM3e": {"bf16": 990, "tf32": 494, "e4m3": 1979, "int8": 1979},
    "NVIDIA H20": {"bf16": 148, "fp16": 148, "tf32": 74, "e4m3": 296, "int8": 296},
    "NVIDIA H800": {"bf16": 989.4, "e4m3": 1978.9},
    "NVIDIA H800 PCIe": {"bf16": 756, "e4m3": 1513},
    "NVIDIA B200": {"bf16": 2250, "fp16": 2250, "tf32": 1125, "e4m3": 4500, "int8": 4500},
    "NVIDIA GB200": {"bf16": 2500, "fp16": 2500, "tf32": 1250, "e4m3": 5000, "int8": 5000},
    "NVIDIA GeForce RTX 5090": {"bf16": 209.5, "tf32": 104.8, "e4m3": 419, "int8": 838},
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": {"bf16": 503.8, "e4m3": 1007.6},
    # An eighth of the 3511 sparse fp4 TOP/s that its data sheet gives.
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": {"bf16": 438.9},
}

# CUDA Programming Guide, Technical Specifications per Compute Capability: threads, warps and blocks
# per SM, KiB of shared memory per SM and, opted in, per block.
SPECIFICATIONS = {
    "sm80": (2048, 64, 32, 164, 163),
    "sm86": (1536, 48, 16, 100, 99),
    "sm87": (1536, 48, 16, 164, 163),
    "sm89": (1536, 48, 24, 100, 99),
    "sm90": (2048, 64, 32, 228, 227),
    "sm100": (2048, 64, 32, 228, 227),
    "sm120": (1536, 48, 24, 100, 99),
}


def test_every_file_is_a_known_arch_and_loads() -> None:
    assert archs.names("nvidia") == NAMES
    assert sorted(archs.names()) == sorted([*NAMES, *archs.names("huawei")])
    assert [archs.load(each).name for each in NAMES] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_limits_are_those_of_the_programming_guide(name: str) -> None:
    found = archs.gpu(archs.load(name))
    threads, warps, blocks, smem_per_sm_kib, smem_per_block_kib = SPECIFICATIONS[name]
    assert (found.max_threads_per_sm, found.max_warps_per_sm) == (threads, warps)
    assert found.max_blocks_per_sm == blocks
    assert found.smem_per_sm_bytes == smem_per_sm_kib * 1024
    assert found.smem_per_block_bytes == smem_per_block_kib * 1024
    assert found.smem_per_sm_bytes - found.smem_per_block_bytes == 1024
    assert found.smem_reserved_per_block_bytes == 1024
    assert (found.registers_per_sm, found.max_registers_per_thread) == (65536, 255)
    assert (found.max_threads_per_block, found.warp_size) == (1024, 32)
    assert f"sm{found.compiler_target}" == name


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_positive(name: str) -> None:
    found = archs.load(name)
    holders: list[Arch | Device] = [found, *found.devices]
    for each in holders:
        numbers = [value for value in map(each.__getattribute__, _names(each)) if _number(value)]
        assert numbers and all(value > 0 for value in numbers)
        assert all(rate > 0 for rate in each.tensor_flops_per_clock_per_sm.values())
        assert {"bf16", "fp16"} <= set(each.tensor_flops_per_clock_per_sm)


def _names(each: Arch | Device) -> list[str]:
    return [field.name for field in fields(each)]


def _number(value: object) -> bool:
    return isinstance(value, int | float)


@pytest.mark.parametrize(("name", "device"), DEVICES, ids=[each.name for _, each in DEVICES])
def test_tensor_peaks_are_the_published_ones(name: str, device: Device) -> None:
    assert PUBLISHED[device.name]
    for dtype, tflops in PUBLISHED[device.name].items():
        assert device.tensor_flops_per_s(dtype) == pytest.approx(tflops * 1e12, rel=0.03)


@pytest.mark.parametrize("name", NAMES)
def test_the_arch_has_the_rates_of_its_default_device(name: str) -> None:
    found = archs.gpu(archs.load(name))
    default = found.device()
    assert default is found.devices[0]
    assert found.tensor_flops_per_clock_per_sm == default.tensor_flops_per_clock_per_sm
    assert found.l2_bytes_per_clock == default.l2_bytes_per_clock
    assert found.dtypes == (*found.tensor_flops_per_clock_per_sm, "fp32")


def test_a_device_overrides_the_rates_it_names_and_keeps_the_others() -> None:
    found = archs.gpu(archs.load("sm89"))
    assert found.device("rtx 4090").tensor_flops_per_clock_per_sm["bf16"] == 512
    l4 = found.device("l4")
    assert l4.tensor_flops_per_clock_per_sm["bf16"] == 1024
    assert l4.tensor_flops_per_clock_per_sm["int8"] == 2048
    assert l4.l2_bytes_per_clock < found.l2_bytes_per_clock


def test_the_clock_of_the_peak_is_not_the_highest_one() -> None:
    h200 = archs.load("sm90").device("NVIDIA H200")
    assert (h200.boost_mhz, h200.max_mhz) == (1830, 1980)
    assert archs.load("sm80").device().max_mhz is None


def test_names_for_expressions() -> None:
    env = archs.load("sm90").env()
    assert (env["arch"], env["compute_capability"]) == ("sm90", 90)
    assert (env["has_tma"], env["has_wgmma"], env["has_fp8"]) == (True, True, True)
    assert env["smem_per_block_bytes"] == 232448
    sm120 = archs.load("sm120").env()
    assert (sm120["has_tma"], sm120["has_wgmma"]) == (True, False)
    assert all(archs.load(each).env().keys() == env.keys() for each in NAMES)


def test_a_dtype_without_tensor_cores_is_an_error_that_lists_the_others() -> None:
    with pytest.raises(TunefaError, match=r"'e4m3' *\(known: bf16, fp16, tf32, int8\)"):
        archs.load("sm80").device().tensor_flops_per_s("e4m3")


def test_an_arch_travels_between_processes_and_into_sets() -> None:
    found = archs.load("sm90")
    assert pickle.loads(pickle.dumps(found)) == found
    assert len({found, *found.devices}) == 1 + len(found.devices)


@pytest.mark.parametrize("name", NAMES)
def test_sources_are_public_documents_or_say_that_they_are_estimates(name: str) -> None:
    for key, text in archs.load(name).sources.items():
        assert text.startswith(("Estimate: ", "NVIDIA, ", "FlashAttention-4", "cudaDeviceProp")), (
            key
        )
