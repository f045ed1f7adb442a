"""tunefa/measure/ops/bwd.py: what backward kernels are checked with, and their limits."""

from __future__ import annotations

import math

from torch import Tensor

from tunefa.measure import ops
from tunefa.measure.gate import Probe
from tunefa.spec.workload import Workload

TEXTS = (
    "bwd_b2_h4_kv2_q70_k90_d32_fp16_causal",
    "bwd_b2_h4_kv2_q70_k90_d32_dv48_bf16_full_w20_a9",
    "bwd_b5_h4_kv2_q70_k90_d32_fp16_causal_varlen",
)


def probe_of(text: str, kind: str = "mixed") -> Probe:
    return Probe.of(Workload.parse(text), kind, "cpu")  # type: ignore[arg-type]


def test_the_limit_is_twice_what_pytorch_makes_and_has_a_floor() -> None:
    for text in TEXTS[:2]:
        probe = probe_of(text, "normal")
        op, shape = ops.of(probe.shape), probe.shape
        limit = op.limit(shape, "normal", probe.tensors, probe.expected)
        assert op.ROUNDING[shape.dtype] <= limit < 4 * op.ROUNDING[shape.dtype]
    assert op.limit(shape, "hostile", probe.tensors, probe.expected) == math.inf
    packed = probe_of(TEXTS[2])
    assert op.limit(packed.shape, "mixed", packed.tensors, packed.expected) == 1e-3


def test_a_gradient_of_the_logsumexp_is_checked_but_not_timed() -> None:
    workload = Workload.parse(TEXTS[0])
    op = ops.of(workload)
    dlse: Tensor = op.tensors(workload, "cpu", seed=0)[6]
    assert dlse.stride() == (0, 0, 0) and not bool(dlse.any())
    made, _ = op.inputs(workload, "normal", "cpu")
    assert made[6].is_contiguous() and bool((made[6] != 0).all())
