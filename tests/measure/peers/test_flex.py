"""tunefa/measure/peers/flex.py: the masks and soft-caps that FlexAttention gets."""

from __future__ import annotations

import pytest
import torch

from tunefa.measure import check, peers
from tunefa.measure.peer import Unserved
from tunefa.measure.peers import flex
from tunefa.measure.verdict import Truth
from tunefa.spec.workload import Workload


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "text",
    [
        "b1_h2_q70_d16_fp32_full",
        "b1_h2_q70_k97_d16_fp32_causal",
        "b1_h2_q97_d16_fp32_causal_w40",
        "h4_kv2_q64_k97_fp32_causal_w9",
        "b1_h2_q97_k120_d16_fp32_full_w40",
        "b1_h2_q97_d16_fp32_w20_a9",
        "b1_h2_q97_d16_fp32_a9",
        "b1_h4_kv2_q97_d16_fp16_causal_softcap",
    ],
)
def test_flex_computes_the_workload(text: str) -> None:
    workload = Workload.parse(text)
    tensors = check.tensors(workload, "cpu", seed=0)[:3]
    out = peers.load("flex").make(workload, tensors)()
    assert Truth.of(workload, tensors).verdict(out).why_wrong is None


def test_inductor_knows_the_options() -> None:
    options = flex.autotuned()
    assert options["max_autotune"] is True and options["autotune_num_choices_displayed"] == 0
    torch.compile(lambda x: x + 1, options=options)  # raises for unknown ones


@pytest.mark.parametrize("text", ["q64_varlen", "q64_e4m3"])
def test_what_it_does_not_serve(text: str) -> None:
    workload = Workload.parse(text)
    with pytest.raises(Unserved):
        peers.load("flex").make(workload, check.tensors(workload, "cpu", seed=0)[:3])
