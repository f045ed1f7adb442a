"""tunefa/costmodel/version.py: a changed prediction needs a new version of its model."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tunefa.costmodel import decode, gpu, learned, npu
from tunefa.costmodel.version import (
    GPU_MODEL_VERSION,
    NPU_MODEL_VERSION,
    learned_id,
    model_version,
    provenance,
)
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.tiling import NpuTiling, Tiling
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

TRITON = kernels.load("attention_fwd_triton").space
CONFIG = {
    "BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2,
    "USE_TMA": 1, "maxnreg": 0, "L2_SECTION_HEADS": 1, "PACK_GQA": 0,
}  # fmt: skip
SPECIALISED = Tiling(
    block_m=128, block_n=128, columns=128, columns_v=128, warps=8, stages=2,
    copied_by_threads=False, max_registers=240, l2_section_heads=8, packed_heads=1,
    diagonal_n=64, warp_specialised=True,
)  # fmt: skip
WORKLOADS = ("b1_h32_kv8_q8k_d128", "b4_h16_q1k_d64_full_fp16", "b8_h32_kv8_q1_k8k_d128")

_BEFORE_LEARNING = [
    3690.479, 3979.835, 2470.224, 162.5461, 180.7021, 138.8298, 1112.628, 1199.777,
    739, 1545.906, 1729.359, 838.8404, 77.46849, 88.65974, 55.24918, 378.9913,
    423.7563, 204.1694,
]  # fmt: skip
GPU_PREDICTIONS = {1: _BEFORE_LEARNING, 2: _BEFORE_LEARNING}
"""By version, the times in us of `gpu_times`. When the model changes, so that the test below fails,
count its version up and write the new times down under the new version."""
NPU_PREDICTIONS = {1: [112696.3, 24877.31, 6830.271, 1466.561, 7022.946, 5880.092]}


def gpu_times() -> list[float]:
    """The predictions for each workload on two chips: three configs, one of them with spills."""
    found = []
    for chip in ("sm80", "sm90"):
        arch = archs.gpu(archs.load(chip))
        for text in WORKLOADS:
            workload = Workload.parse(text)
            plain = TRITON.tiling({**CONFIG, "USE_TMA": int(chip == "sm90")}, workload, arch)
            resources = Resources(98304, 200, 0)
            for tiling, needed in (
                (plain, resources),
                (plain, replace(resources, spill_bytes=64)),
                (
                    replace(SPECIALISED, columns=workload.head_dim),
                    replace(resources, registers=168),
                ),
            ):
                prediction = gpu.predict(workload, arch, arch.device(), tiling, needed)
                found.append(prediction.time_us)
    return found


def npu_times() -> list[float]:
    arch = archs.load("ascend910b3")
    tilings = [NpuTiling(m, 64, m == 128, 1.0, 1.0, 1.0) for m in (32, 128)]
    return [
        npu.time_us(Workload.parse(text), arch.device(), tiling)
        for text in WORKLOADS
        for tiling in tilings
    ]


def test_predictions_of_a_version_do_not_change() -> None:
    why = "predictions changed: count the model's version up, and write the new times down under it"
    assert gpu_times() == pytest.approx(GPU_PREDICTIONS[GPU_MODEL_VERSION], rel=1e-6), why
    assert npu_times() == pytest.approx(NPU_PREDICTIONS[NPU_MODEL_VERSION], rel=1e-6), why


def test_the_id_of_what_was_learned_is_one_for_all_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids: dict[str, str] = {}

    def load(kernel: str, arch: str) -> SimpleNamespace | None:
        return SimpleNamespace(id=ids[kernel]) if arch == "sm90" and kernel in ids else None

    monkeypatch.setattr(learned, "load", load)
    seen = {learned_id("predicted", "sm90")}
    assert seen == {None}
    for name, own in (("triton", "1"), ("cuda_sm90", "2"), ("triton", "3")):
        ids[f"attention_fwd_{name}"] = own
        seen.add(learned_id("predicted", "sm90"))
    assert len(seen) == 4
    now = learned_id("predicted", "sm90")
    assert provenance("predicted", "sm90") == {"model": GPU_MODEL_VERSION, "learned": now}
    assert provenance("predicted", "sm80") == {"model": GPU_MODEL_VERSION}
    assert learned_id("measured", "sm90") is None and provenance("measured", "sm90") == {}


def test_what_is_measured_has_no_model() -> None:
    assert model_version("predicted") == GPU_MODEL_VERSION
    assert model_version("predicted", "decode") == decode.VERSION
    assert provenance("predicted", "sm80", "decode") == {"model": decode.VERSION}
    assert model_version("modelled") == model_version("estimated") == NPU_MODEL_VERSION
    assert model_version("measured") is None and model_version("replayed") is None
