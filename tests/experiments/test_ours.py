"""tunefa/experiments/ours.py: tunefa's calls, on the CPU."""

from __future__ import annotations

import pytest

import tunefa
from tunefa.experiments import ours
from tunefa.measure import check
from tunefa.measure.peer import Tensors, Unserved
from tunefa.measure.verdict import Truth
from tunefa.spec.workload import Workload


def tensors(workload: Workload) -> Tensors:
    made = check.tensors(workload, "cpu", seed=0)
    return *made[:3], *made[5:]


@pytest.mark.parametrize(
    "text",
    [
        "b2_h4_kv2_q60_k97_d32_fp32_causal",
        "b1_h2_q97_d32_fp32_causal_w40",
        "b1_h2_q97_d32_fp32_w20_a9",
        "b1_h2_q97_d32_fp16_causal_softcap",
        "b3_h4_kv2_q90_d32_bf16_causal_varlen",
        "b3_h4_kv2_q90_d32_bf16_causal_w20_softcap_varlen",
        "b2_h4_kv2_q90_d32_e4m3_causal",
    ],
)
def test_the_call_of_a_user_is_right(text: str) -> None:
    workload = Workload.parse(text)
    given = tensors(workload)
    out = ours.maker()(workload, given)()
    assert Truth.of(workload, given).verdict(out).why_wrong is None
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.kernel == "pytorch"


def test_a_kernel_needs_a_chip() -> None:
    workload = Workload.parse("q64_d64")
    with pytest.raises(Unserved, match="kernels run on CUDA devices"):
        ours.default_of("attention_fwd_triton")(workload, tensors(workload))
