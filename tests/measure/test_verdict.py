"""tunefa/measure/verdict.py: right outputs pass, and each kind of wrong one fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import Tensor

from tunefa.measure import check, reference
from tunefa.measure.peer import Tensors
from tunefa.measure.verdict import Truth
from tunefa.spec.workload import Workload

WORKLOADS = [
    "b2_h8_kv2_q40_k50_d32_bf16_causal_w20",
    "b2_h4_q40_d32_fp32_full",
    "b3_h4_q40_d32_fp16_causal_softcap",
    "b3_h8_kv2_q40_d32_bf16_causal_varlen",
    "b2_h8_kv2_q40_d32_e4m3_causal",
    "b1_h4_q50_k40_d32_bf16_causal",
]


def tensors(workload: Workload) -> Tensors:
    made = check.tensors(workload, "cpu", seed=0)
    return *made[:3], *made[5:]


def output(workload: Workload, given: Tensors) -> Tensor:
    made = (*given[:3], None, None, *given[3:])
    return reference.attention(check.inputs(workload, made, workload.head_dim**-0.5))[0]


@pytest.mark.parametrize("text", WORKLOADS)
def test_the_reference_in_the_dtype_passes(text: str) -> None:
    workload = Workload.parse(text)
    given = tensors(workload)
    verdict = Truth.of(workload, given).verdict(output(workload, given))
    assert verdict.why_wrong is None
    assert 0 <= verdict.error <= verdict.worst_row


@pytest.mark.parametrize("text", WORKLOADS)
def test_another_mask_fails(text: str) -> None:
    workload = Workload.parse(text)
    given = tensors(workload)
    other = replace(workload, causal=not workload.causal)
    verdict = Truth.of(workload, given).verdict(output(other, given))
    assert str(verdict.why_wrong).startswith("its relative error is ")


def test_one_wrong_row_of_many_fails() -> None:
    workload = Workload.parse("b1_h4_q6000_k16_d16_fp32_full")
    given = tensors(workload)
    out = output(workload, given)
    out[0, 1, 5000] *= 1.0008  # a 24,000th of the rows
    verdict = Truth.of(workload, given).verdict(out)
    assert verdict.error < verdict.limit
    assert "a row has a relative error of 8.0e-04" in str(verdict.why_wrong)


def test_nan_and_a_wrong_shape_fail() -> None:
    workload = Workload.parse("b2_h4_q40_d32_full")
    given = tensors(workload)
    truth, out = Truth.of(workload, given), output(workload, given)
    with pytest.raises(ValueError, match=r"its output has the shape \(2, 40, 4, 32\), not"):
        truth.verdict(out.transpose(1, 2))
    out[0, 0, 39, 31] = float("nan")
    assert truth.verdict(out).why_wrong == "its output has NaN"


def test_rows_without_a_key_must_be_zero() -> None:
    workload = Workload.parse("b1_h4_q50_k40_d32_bf16_causal")
    given = tensors(workload)
    truth, out = Truth.of(workload, given), output(workload, given)
    out[0, 0, 3, 0] = 1e-6
    assert truth.verdict(out).why_wrong is not None
