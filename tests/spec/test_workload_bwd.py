"""Workloads of the op `bwd`, attention's gradients."""

from __future__ import annotations

import pytest

from tunefa.errors import TunefaError
from tunefa.spec.workload import Workload


def test_it_has_five_products_and_all_gradients() -> None:
    forward, backward = (Workload.parse(f"{op}_b2_h4_q64_d64_bf16_causal") for op in ("fwd", "bwd"))
    assert backward.flops == 2.5 * forward.flops
    rows = 2 * 4 * 64
    assert forward.io_bytes == rows * (4 * 64 * 2 + 4)
    assert backward.io_bytes == rows * (8 * 64 * 2 + 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [("bwd_q64_e4m3", "has no gradient"), ("fwd_q64_deterministic", "goes with the op bwd")],
)
def test_what_has_no_backward_is_refused(text: str, said: str) -> None:
    with pytest.raises(TunefaError, match=said):
        Workload.parse(text)


def test_deterministic_is_part_of_the_text() -> None:
    workload = Workload.parse("bwd_b1_h2_q64_d64_causal_deterministic")
    assert workload.deterministic and Workload.parse(str(workload)) == workload
    assert str(workload).endswith("_causal_deterministic")
    assert workload.env()["deterministic"] is True and "gradients" in workload.tensor_names
