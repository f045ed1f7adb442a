"""tunefa/experiments/ours.py: tunefa's calls, on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tunefa
from tests.support.fake_kernel import H200, SM90, FakeKernel
from tunefa.experiments import ours
from tunefa.measure import check
from tunefa.measure.peer import Tensors, Unserved
from tunefa.measure.verdict import Truth
from tunefa.runtime.chip import Chip
from tunefa.spec import kernel as kernels
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


@pytest.fixture
def on_h200(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    monkeypatch.setattr(Chip, "of", lambda device: H200)


def test_of_a_backward_pass_the_best_own_kernel_is_chosen(
    on_h200: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = Workload.parse("bwd_b1_h8_q4096_d128_causal")
    ran = ours.backward_ran(workload, torch.device("cuda"))
    serving = kernels.serving(workload, SM90)
    first = serving[0]
    assert kernels.load(ran["kernel"]).op == "bwd" and ran["config"] and ran["why"]
    library = FakeKernel("attention_bwd_cudnn", "library")
    monkeypatch.setattr(kernels, "serving", lambda *_: [library, first])
    assert ours.backward_choice(workload, torch.device("cuda")).kernel == first.name
    monkeypatch.setattr(kernels, "serving", lambda *_: [library])
    with pytest.raises(Unserved, match="no kernel of tunefa's own serves it"):
        ours.backward_choice(workload, torch.device("cuda"))


def test_a_backward_pass_that_no_kernel_serves_says_why(on_h200: None) -> None:
    wide = replace(Workload.parse("bwd_q64"), dtype="fp32", head_dim=256, head_dim_v=256)
    with pytest.raises(Unserved, match="no kernel serves bwd_"):
        ours.backward_choice(wide, torch.device("cuda"))
