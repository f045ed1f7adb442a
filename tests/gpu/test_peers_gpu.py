"""tunefa/measure/peers on a device: what each installed peer says it serves, it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tunefa.measure import check, peers
from tunefa.measure.peer import Unserved
from tunefa.measure.verdict import Truth
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu

WORKLOADS = [
    "b2_h8_q512_d128_full",
    "b2_h8_kv2_q512_d64_causal",
    "b1_h8_kv2_q300_k1000_d128_causal",
    "b1_h8_q1000_d64_causal_w200",
    "b1_h8_q1000_d64_w200_a50",
    "b1_h8_q512_d128_causal_softcap",
    "b5_h8_kv2_q500_d128_causal_varlen",
    "b2_h8_kv2_q512_d128_e4m3_causal",
    "b2_h8_q512_d128_fp16_causal",
    "b1_h8_q512_d256_causal",
    "b1_h4_q512_d64_full_w100",
    "b1_h4_q256_d72_causal",
    "b1_h4_q256_d64_fp32_causal",
]


@pytest.fixture(autouse=True)
def compiled_without_autotuning(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention with max-autotune compiles for half a minute for each workload; what it
    computes does not depend on that."""
    compiled: Any = torch.compile

    def plainly(function: Callable[..., Any], *, dynamic: bool, options: dict[str, Any]) -> Any:
        assert options["max_autotune"]
        return compiled(function, dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", plainly)


@pytest.mark.parametrize("text", WORKLOADS)
@pytest.mark.parametrize("name", peers.names())
def test_a_peer_computes_what_it_serves(name: str, text: str) -> None:
    peer, workload = peers.load(name), Workload.parse(text)
    if why := peer.why_absent():
        pytest.skip(why)
    made = check.tensors(workload, "cuda", seed=0)
    tensors = (*made[:3], *made[5:])
    try:
        out = peer.make(workload, tensors)()
    except Unserved as refused:
        pytest.skip(f"{name}: {refused}")
    torch.cuda.synchronize()
    assert Truth.of(workload, tensors).verdict(out).why_wrong is None
