"""tunefa/measure/peers/pytorch.py: what PyTorch's attention computes, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from tunefa.measure import check, peers
from tunefa.measure.peer import Unserved
from tunefa.measure.peers import pytorch
from tunefa.measure.verdict import Truth
from tunefa.spec.workload import Workload

WORKLOADS = [
    "b2_h4_q60_d32_fp32_full",
    "b2_h4_kv2_q60_d32_fp32_causal",
    "b2_h4_kv2_q60_k97_d32_fp32_causal",
    "b1_h2_q97_d32_fp32_causal_w40",
    "b1_h2_q97_k120_d32_fp32_full_w40",
    "b1_h2_q97_d32_fp32_a9",
    "b1_h2_q97_d32_fp32_w20_a9",
    "b1_h2_q60_d32_dv64_fp32_causal",
    "b1_h4_q60_d64_bf16_causal",
    "b1_h4_q60_d64_fp16_full",
]


def compared(name: str, text: str) -> None:
    workload = Workload.parse(text)
    made = check.tensors(workload, "cpu", seed=0)
    tensors = (*made[:3], *made[5:])
    out = peers.load(name).make(workload, tensors)()
    assert Truth.of(workload, tensors).verdict(out).why_wrong is None


@pytest.mark.parametrize("text", WORKLOADS)
@pytest.mark.parametrize("name", ["sdpa", "math", "operators"])
def test_peers_on_the_host_are_right(name: str, text: str) -> None:
    compared(name, text)


@pytest.mark.parametrize("text", ["h4_kv2_q90_d32_bf16_softcap", "h4_q90_d32_fp16_full_softcap_w9"])
def test_operators_have_a_softcap(text: str) -> None:
    compared("operators", text)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("sdpa", "q64_softcap", "it has no soft-cap"),
        ("sdpa", "q64_varlen", "it is not called for packed sequences"),
        ("math", "q64_e4m3", "it has no e4m3"),
        ("fa2", "q64_fp32", "it has no fp32"),
        ("fa2", "q64_d64_dv32", "its heads of Q and of V must be equally wide"),
        ("fa2", "q64_softcap", "it has no soft-cap"),
        ("operators", "q64_varlen", "it is not called for packed sequences"),
        ("cudnn", "q64", "it runs on CUDA devices only"),
        ("efficient", "q64", "it runs on CUDA devices only"),
        ("fa2", "q64_varlen", "it runs on CUDA devices only"),
    ],
)
def test_what_a_peer_does_not_serve_it_says(name: str, text: str, why: str) -> None:
    workload = Workload.parse(text)
    made = check.tensors(workload, "cpu", seed=0)
    with pytest.raises(Unserved, match=why):
        peers.load(name).make(workload, (*made[:3], *made[5:]))


def test_the_reason_of_a_backend_is_found_among_pytorchs_warnings() -> None:
    said = [  # in the order in which sdp_utils.cpp gives them
        "Memory efficient kernel not used because:",
        "Expected query, key and value to all be of the same dtype",
        "Flash attention kernel not used because:",
        "CuDNN attention kernel not used because:",
        "cuDNN SDPA does not support fp32",
    ]
    reason = pytorch.reason_among
    assert reason(said, "CuDNN attention") == "cuDNN SDPA does not support fp32"
    assert reason(said, "Memory efficient").startswith("Expected query, key and value")
    assert reason(said, "Flash attention") == reason([], "CuDNN") == "no available kernel"


def test_a_mask_is_given_where_the_flag_does_not_say_it() -> None:
    assert pytorch.visible(Workload.parse("q64_full"), "cpu") is None
    assert pytorch.visible(Workload.parse("q64_causal"), "cpu") is None
    workload = Workload.parse("q3_k5_causal_w2")
    assert torch.equal(
        pytorch.visible(workload, "cpu").int(),
        torch.tensor([[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]], dtype=torch.int32),
    )
