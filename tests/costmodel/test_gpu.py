"""tunefa/costmodel/gpu.py: its arithmetic recomputed, and what no prediction may contradict."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from tunefa.costmodel import gpu as model
from tunefa.costmodel.gpu import Prediction
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.arch import Device, GpuArch
from tunefa.spec.tiling import Tiling
from tunefa.spec.trial import Config, Resources
from tunefa.spec.workload import Workload

SM90 = archs.gpu(archs.load("sm90"))
H200 = SM90.device("NVIDIA H200")
KERNEL = kernels.load("attention_fwd_triton")
FULL = Workload.parse("h16_q8192_d128_full")
CAUSAL = replace(FULL, causal=True)
CONFIG: dict[str, Any] = {
    "BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3,
    "USE_TMA": 1, "maxnreg": 0, "L2_SECTION_HEADS": 1, "PACK_GQA": 0,
}  # fmt: skip
RESOURCES = Resources(smem_bytes=131072, registers=200, spill_bytes=0, stack_bytes=0)
WORKLOADS = [
    "q512_d128",
    "q512_d64_full",
    "b4_h16_q1k_d128",
    "h8_kv1_q256_d80_fp32",
    "q128_k2k_d256_full",
    "h4_q2k_fp16",
    "b64_q1_k4k",
]


def predict(workload: Workload = FULL, **changes: Any) -> Prediction:
    """For CONFIG on an H200, both changed by name: `spill_bytes`, `BLOCK_M`, ..."""
    resources = {k: v for k, v in changes.items() if hasattr(RESOURCES, k)}
    config = {k: v for k, v in changes.items() if k not in resources}
    tiling = tiled({**CONFIG, **config}, workload)
    return model.predict(workload, SM90, H200, tiling, replace(RESOURCES, **resources))


def tiled(config: Config = CONFIG, workload: Workload = FULL, arch: GpuArch = SM90) -> Tiling:
    return KERNEL.space.tiling(config, workload, arch)


def lower_bounds(config: Config, workload: Workload, arch: GpuArch) -> Resources:
    """Resources as a search supposes them before it has compiled anything."""
    estimate = KERNEL.space.estimate(config, workload, arch)
    registers = min(int(estimate["registers"]) + 32, arch.max_registers_per_thread)
    return Resources(int(estimate["smem_bytes"]), registers, 0, 0)


def sample(workload: Workload, arch: GpuArch, count: int) -> list[tuple[Config, Resources]]:
    """Feasible configs, the same at each run."""
    configs = KERNEL.space.feasible(workload, arch).configs
    some = random.Random(0).sample(configs, min(count, len(configs)))
    return [(config, lower_bounds(config, workload, arch)) for config in some]


def test_each_part_by_hand() -> None:
    """128 x 64 tiles, head_dim 128, bf16, eight warps of WGMMA, one block per SM of an H200."""
    made = predict()
    scores = 128 * 64
    tensor = 4 * scores * 128 / 4096  # two products; 4096 FLOP per clock and SM
    exp2 = scores / 16
    issue = (model.SLOTS_PER_SCORE * scores + 128 * 128) / 128
    kv_bytes = 2 * 64 * 128 * 2
    smem = (kv_bytes * (1 + 128 / 64) + 128 * 128 * 2) / 128
    assert (tensor, exp2, smem) == (1024.0, 512.0, 1024.0)
    assert made.cycles_per_step == pytest.approx(
        {"tensor": tensor, "exp2": exp2, "issue": issue, "smem": smem, "spills": 0.0}
    )
    # 131,072 B of 233,472: one block. 16 heads x 64 tiles on 132 SMs: 8 programs on the busiest.
    assert made.occupancy.blocks_per_sm == 1
    assert made.steps == 8 * 8192 / 64
    serial = tensor + exp2 + issue
    latency = model.STEP_LATENCY + max(0.0, model.LOAD_LATENCY - 2 * serial)
    streams = 1 + model.STREAM_COUPLING  # two warpgroups of one block
    cycles = serial / streams + latency + (streams - 1) / streams * max(tensor, exp2, issue)
    assert made.compute_us == pytest.approx(1024 * cycles / 1830)
    # Every program reads K and V of its head: 1024 programs x 8192 keys x 512 B.
    assert made.l2_us == pytest.approx(1024 * 8192 * 512 / (4472 * 1830))
    # One head's K and V, 4 MiB, stay in the L2: q, k, v, out once, and lse.
    once = 4 * 16 * 8192 * 128 * 2 + 16 * 8192 * 4
    assert made.hbm_us == pytest.approx(once / 4.8e12 * 1e6)
    assert made.time_us == pytest.approx(made.compute_us + model.LAUNCH_US)
    assert made.time_us > made.l2_us > made.hbm_us


def test_pointer_loads_spend_issue_slots() -> None:
    more = predict(USE_TMA=0).cycles_per_step["issue"] - predict().cycles_per_step["issue"]
    assert more == pytest.approx(model.SLOTS_PER_COPY * (2 * 64 * 128 * 2 / 16) / 128)


def test_a_mask_spends_issue_slots_in_its_share_of_the_steps() -> None:
    # A tile of 128 rows sees 64.5 blocks of 64 keys on average, 3 of them (128 / 64 + 1) masked.
    useful = CAUSAL.pairs / 8192 / 64
    share = 3 / (useful + 1.5)
    more = predict(CAUSAL).cycles_per_step["issue"] - predict().cycles_per_step["issue"]
    assert more == pytest.approx(model.MASK_SLOTS_PER_SCORE * share * 128 * 64 / 128)


def test_tensor_rates() -> None:
    tensor = predict().cycles_per_step["tensor"]
    assert predict(replace(FULL, dtype="fp16")).cycles_per_step["tensor"] == tensor
    # tf32 has half the rate, and three products make up for its ten bits.
    assert predict(replace(FULL, dtype="fp32")).cycles_per_step["tensor"] == 6 * tensor
    # Two warps cannot use WGMMA, nor can 32 rows.
    slow = tensor / model.MMA_SYNC_RATE_ON_HOPPER
    assert predict(num_warps=2).cycles_per_step["tensor"] == pytest.approx(slow)
    assert predict(BLOCK_M=32).cycles_per_step["tensor"] == pytest.approx(slow / 4)
    # Head dimensions are padded to powers of two.
    padded = replace(FULL, head_dim=80, head_dim_v=80)
    assert predict(padded).cycles_per_step["tensor"] == tensor


def test_spills_are_slower_the_more_there_are() -> None:
    times = [predict(spill_bytes=spilled).time_us for spilled in (0, 8, 64, 512, 4096)]
    assert times == sorted(times) and len(set(times)) == 5


def test_unknown_resources_count_as_none() -> None:
    unknown = model.predict(FULL, SM90, H200, tiled(), Resources())
    assert unknown == model.predict(FULL, SM90, H200, tiled(), Resources(0, 1, 0, 0))


@pytest.mark.parametrize(
    "changes",
    [
        {"smem_bytes": SM90.smem_per_block_bytes + 1},
        {"registers": 256},
        {"registers": 255, "num_warps": 16},
        {"num_warps": 64},
    ],
)
def test_a_block_that_does_not_fit_takes_forever(changes: dict[str, Any]) -> None:
    made = predict(**changes)
    assert math.isinf(made.time_us) and made.limiter == "occupancy"
    assert made.occupancy.blocks_per_sm == 0


def test_causal_takes_about_half() -> None:
    for seqlen in (4096, 16384, 65536):
        full = replace(FULL, seqlen_q=seqlen, seqlen_k=seqlen)
        ratio = predict(replace(full, causal=True)).compute_us / predict(full).compute_us
        assert 0.45 < ratio < 0.6


def test_causal_with_more_keys_than_queries_is_nearly_full() -> None:
    full = replace(FULL, seqlen_q=1024, seqlen_k=16384)
    assert 0.9 < predict(replace(full, causal=True)).time_us / predict(full).time_us < 1.1


def test_packed_query_heads_read_k_and_v_once_a_group() -> None:
    grouped = replace(FULL, heads=16, heads_kv=4)
    assert predict(grouped, PACK_GQA=1).l2_us == pytest.approx(predict(grouped).l2_us)
    # A tile of 128 rows is one head's 32, or all four heads'.
    few = replace(grouped, seqlen_q=32, batch=128)
    assert predict(few, PACK_GQA=1).l2_us == pytest.approx(predict(few).l2_us / 4)
    assert predict(few, PACK_GQA=1).time_us < predict(few).time_us


def test_heads_that_do_not_fit_the_l2_together_read_memory_again() -> None:
    far = replace(FULL, seqlen_q=65536, seqlen_k=65536)  # 32 MiB of K and V per head
    hbm = [predict(far, L2_SECTION_HEADS=heads).hbm_us for heads in (1, 4, 16)]
    assert hbm == sorted(hbm) and hbm[2] > 2 * hbm[0]


def test_memory_binds_where_there_is_little_to_compute() -> None:
    decode = Workload.parse("b128_h32_kv32_q1_k8192")
    made = predict(decode, BLOCK_M=16, num_warps=1, smem_bytes=16384, registers=96)
    assert made.limiter == "HBM"
    assert made.time_us >= decode.io_bytes / H200.hbm_bytes_per_s * 1e6


LONGER = {
    "seqlen": [{"seqlen_q": 2, "seqlen_k": 2}, {"seqlen_q": 3, "seqlen_k": 3}],
    "keys": [{"seqlen_k": 2}, {"seqlen_k": 5}],
    "batch": [{"batch": 2}, {"batch": 3}, {"batch": 5}],
}


@pytest.mark.parametrize("arch", archs.names("nvidia"))
@pytest.mark.parametrize("what", LONGER)
def test_more_work_is_never_faster(arch: str, what: str) -> None:
    chip = archs.gpu(archs.load(arch))
    for text in WORKLOADS:
        workload = Workload.parse(text)
        for config, resources in sample(workload, chip, 40):
            tiling = tiled(config, workload, chip)
            less = model.predict(workload, chip, chip.device(), tiling, resources).time_us
            for factors in LONGER[what]:
                sizes = {name: getattr(workload, name) * by for name, by in factors.items()}
                bigger = replace(workload, **sizes)
                tiling = tiled(config, bigger, chip)
                more = model.predict(bigger, chip, chip.device(), tiling, resources).time_us
                assert more >= less * (1 - 1e-12), (text, str(bigger), config)


def test_a_tile_more_of_queries_is_never_faster() -> None:
    for config, resources in sample(CAUSAL, SM90, 60):
        times = [
            model.predict(
                replace(CAUSAL, heads=4, heads_kv=4, seqlen_q=seqlen, seqlen_k=seqlen),
                SM90, H200, tiled(config, CAUSAL), resources,
            ).time_us
            for seqlen in range(256, 8193, 256)
        ]  # fmt: skip
        assert times == sorted(times), config


DEVICES = [(each, device) for each in archs.names("nvidia") for device in archs.load(each).devices]


@pytest.mark.parametrize(("arch", "device"), DEVICES, ids=lambda each: getattr(each, "name", each))
def test_no_config_is_predicted_above_the_peak(arch: str, device: Device) -> None:
    """All configs on the first device of sm90; on other chips and devices some."""
    chip = archs.gpu(archs.load(arch))
    for text in WORKLOADS:
        workload = Workload.parse(text)
        rate = device.tensor_flops_per_s("tf32" if workload.dtype == "fp32" else workload.dtype)
        peak = rate / 3 if workload.dtype == "fp32" else rate
        configs = KERNEL.space.feasible(workload, chip).configs
        step = (1 if arch == "sm90" else 7) if device == chip.devices[0] else 25
        for config in configs[::step]:
            resources = lower_bounds(config, workload, chip)
            tiling = tiled(config, workload, chip)
            time_us = model.predict(workload, chip, device, tiling, resources).time_us
            assert workload.flops / time_us * 1e6 < peak, (text, config)
            assert time_us > workload.io_bytes / device.hbm_bytes_per_s * 1e6


def expected(**changes: Any) -> Resources:
    """The resources of 128 x 64 tiles on 8 warps, head_dim 128: 32 scores, 64 outputs a thread."""
    return model.expected_resources(SM90, tiled({**CONFIG, **changes}), 1000, 96)


def test_what_the_compiler_will_report_is_guessed() -> None:
    assert expected() == Resources(1000, int(15 + 1.5 * 32 + 1.35 * 64), 0)
    pointers = expected(USE_TMA=0).registers
    assert pointers is not None and pointers > (expected().registers or 0)
    capped = expected(maxnreg=96)
    assert capped.registers == 96
    assert capped.spill_bytes == int(4 * (15 + 1.5 * 32 + 1.35 * 64 - 25 - 96))


def test_a_block_never_asks_for_more_registers_than_there_are() -> None:
    """16 warps of 512 threads leave 128 registers each, though the kernel sets no cap."""
    tiling = tiled({**CONFIG, "num_warps": 16})
    wide = model.expected_resources(SM90, tiling, 1000, 300)
    assert wide.registers == SM90.registers_per_sm // 512
    assert (wide.spill_bytes or 0) > 0
    assert math.isfinite(model.predict(FULL, SM90, H200, tiling, wide).time_us)
