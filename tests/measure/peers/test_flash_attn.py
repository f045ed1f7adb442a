"""tunefa/measure/peers/flash_attn.py: what is asked of FlashAttention. Its calls need a GPU."""

from __future__ import annotations

import pytest

from tunefa.measure import peers
from tunefa.measure.peer import Unserved
from tunefa.measure.peers import flash_attn
from tunefa.spec.workload import Workload

FA3_FWD = {"FLASHATTENTION_DISABLE_LOCAL": True, "FLASHATTENTION_DISABLE_FP16": True}
"""The parts that the wheel fa3-fwd 0.0.3 leaves out, by its fa3_fwd_config."""


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("flash_attn2", "q64_e4m3", "it has no e4m3"),
        ("flash_attn2", "q64_d64_dv32", "its heads of Q and of V must be equally wide"),
        ("fa4", "q64_fp32", "it has no fp32"),
        ("fa4", "q64_e4m3", "it has no e4m3"),
        ("fa3", "q64_fp32", "it has no fp32"),
        ("fa3", "q64_d128_dv64", "it has no head_dim 128 with head_dim_v 64"),
    ],
)
def test_what_is_not_served_is_said_before_anything_is_imported(
    name: str, text: str, why: str
) -> None:
    with pytest.raises(Unserved, match=why):
        peers.load(name).make(Workload.parse(text), ())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("q64_causal_w9", "it has no sliding windows"),
        ("q64_a9", "it has no sliding windows"),
        ("q64_fp16", "it has no fp16"),
    ],
)
def test_what_a_build_leaves_out_is_said(text: str, why: str) -> None:
    flash_attn._require_built(Workload.parse(text), {})
    with pytest.raises(Unserved, match=why):
        flash_attn._require_built(Workload.parse(text), FA3_FWD)


@pytest.mark.parametrize(
    "text", ["q64_e4m3", "q64_softcap_varlen", "q64_k99_causal", "q64_d192_dv128", "q64_d64_dv256"]
)
def test_what_a_build_has_is_served(text: str) -> None:
    flash_attn._require_built(Workload.parse(text), FA3_FWD)
