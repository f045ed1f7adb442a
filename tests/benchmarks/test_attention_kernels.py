"""benchmarks/attention_kernels.py: which kernels are tunefa's, and which are attention."""

from __future__ import annotations

import pytest

from benchmarks.attention_kernels import OTHERS, DeviceTime, own_names

OWN = (
    *("attention_fwd", "attention_bwd", "attention_delta", "attention_decode", "attention_prefill"),
    *("prepare_rows", "write_dq", "combine_splits", "pack_tiles", "transpose_v"),
)
PYTORCH_S = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4, false>>",
    "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128>>",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
    "void cudnn::fusion::convert_dq_to_16bits<__nv_bfloat16, 128>",
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<bf16>)",
)
REST = (
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopA_NNT",
    "void at::native::vectorized_elementwise_kernel<4, at::native::exp2_kernel_cuda>",
    "Memcpy DtoD (Device -> Device)",
    "triton_poi_fused_mul_0",
)


@pytest.mark.parametrize("name", OWN)
def test_the_functions_of_kernels_are_own(name: str) -> None:
    assert name in own_names()


def test_names_of_others_are_told_apart() -> None:
    assert all(OTHERS.search(name) for name in PYTORCH_S)
    assert not any(OTHERS.search(name) for name in REST)
    assert own_names().isdisjoint(PYTORCH_S + REST)
    assert not any(name.startswith("_") for name in own_names())


def test_times_add_up() -> None:
    kernels = {OWN[0]: 3.0, PYTORCH_S[0]: 1.0, PYTORCH_S[2]: 2.0, REST[0]: 10.0}
    found = DeviceTime(kernels)
    assert (found.own_ms, found.attention_ms, found.total_ms) == (3.0, 6.0, 16.0)
    assert DeviceTime().attention_ms == 0.0
