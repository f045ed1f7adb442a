"""Workloads of latent attention over a cache."""

from __future__ import annotations

import pytest

from tunefa.errors import TunefaError
from tunefa.spec.workload import Workload


def test_latent_attention_has_one_row_for_keys_and_values() -> None:
    short, text = "decode_b16_h128_k8192_page64_mla", (
        "decode_b16_h128_kv1_q1_k8192_d576_dv512_bf16_causal_page64_mla"
    )  # fmt: skip
    workload = Workload.parse(short)
    assert str(workload) == text and Workload.parse(text) == workload
    rows, keys = 16 * 128, 16 * 8192
    assert workload.io_bytes == 2 * (rows * 576 + keys * 576 + rows * 512) + 4 * rows
    assert workload.flops == 2 * rows * 8192 * (576 + 512)
    assert Workload.parse("decode_h4_k8_d320_mla").head_dim_v == 256
    with pytest.raises(TunefaError, match="head_dim_v is 64 and head_dim 64 with mla"):
        Workload.parse("decode_h4_k8_d64_mla")
    with pytest.raises(TunefaError, match="head_dim_v 512 is above 256"):
        Workload.parse(text.removesuffix("_mla").replace("d576", "d128"))
