"""tunefa/measure/ops/fwd.py: attention as an op; tests of `check` and `gate` have its details."""

from __future__ import annotations

import math

import torch

from tunefa.measure import check, sdpa
from tunefa.measure.ops import fwd
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload

SHAPE = Workload.parse("b2_h4_kv2_q40_k60_d32_fp16_causal")


def test_the_reference_passes_and_a_wrong_output_does_not() -> None:
    made, memories = fwd.inputs(SHAPE, "mixed", "cpu")
    expected = fwd.expected(SHAPE, "mixed", made, torch.float64)
    outputs = expected.out.half(), expected.lse.float()
    assert expected.compare(*outputs).passed and len(memories) == 5
    outputs[0][0, 0, 0] += 1.0
    found = expected.compare(*outputs)
    assert not found.passed and "row 0 of head 0 in batch 0" in found.reason


def test_its_limit_is_twice_the_error_of_pytorch() -> None:
    made, _ = fwd.inputs(SHAPE, "normal", "cpu")
    expected = fwd.expected(SHAPE, "normal", made, torch.float64)
    limit = fwd.limit(SHAPE, "normal", made, expected)
    out = torch.empty_like(made[3].contiguous())
    sdpa.write(check.inputs(SHAPE, tuple(x.contiguous() for x in made), 32**-0.5), out)
    assert limit == max(2 * expected.error(out), fwd.ROUNDING["fp16"])
    assert fwd.limit(SHAPE, "hostile", made, expected) == math.inf


def test_a_launch_has_the_scale_of_its_head_dimension() -> None:
    case = Case.from_names("attention_fwd_triton", "q64_d64", "sm90")
    spec = fwd.launch_spec(case, case.default())
    assert (spec.scale, spec.softcap) == (0.125, None)
