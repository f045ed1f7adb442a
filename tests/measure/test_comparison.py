"""tunefa/measure/comparison.py: what counts as an error of a row, and how it is said."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tunefa.measure import check
from tunefa.measure.comparison import ROW_MARGIN, TOLERANCE, Comparison, Expected, Row, sequence_of
from tunefa.spec.workload import Workload

SHAPE = Workload.parse("b2_h4_kv2_q40_k60_d32_bf16")


def expected(workload: Workload, values: str = "normal") -> Expected:
    made = check.tensors(workload, "cpu", seed=0)
    if values == "positive":
        made[2].copy_((0.5 + made[2].float().abs()).to(made[2].dtype))
    return Expected.of(workload, check.inputs(workload, made, 32**-0.5), torch.float64)


def relative(found: Expected) -> Any:
    return found.limits / found.norms


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "e4m3"])
def test_a_row_of_normal_inputs_has_about_the_tolerance_of_all(dtype: str) -> None:
    limits = relative(expected(Workload.parse(f"b2_h4_q300_k400_d32_{dtype}_full")))
    assert TOLERANCE[dtype] / 2 < float(limits.min()) < float(limits.max()) < 4 * TOLERANCE[dtype]


def test_rounding_of_probabilities_averages_out_where_v_is_positive() -> None:
    """So the limit of e4m3 is far below the quarter that sums in tensor cores lose."""
    workload = Workload.parse("h2_q16_k4096_d32_e4m3_full")
    normal, positive = (relative(expected(workload, v)) for v in ("normal", "positive"))
    assert float(normal.min()) > 0.1 and float(positive.max()) < 0.03


@pytest.mark.parametrize("kind", ["_softcap", "_w9", "_varlen"])
def test_the_spread_is_that_of_the_formula(kind: str) -> None:
    """sqrt(sum of p_j^2 ||v_j||^2), from probabilities that are the outputs for unit values."""
    workload = Workload.parse(f"b3_h4_kv2_q20_k24_d32_dv24_fp16{kind}")
    made = check.tensors(workload, "cpu", seed=0)
    found = Expected.of(workload, check.inputs(workload, made, 0.5), torch.float64)
    p = []
    for key in range(made[1].shape[0 if workload.varlen else 2]):
        units = torch.zeros_like(made[2])
        units.select(0 if workload.varlen else 2, key).fill_(1.0)
        one = check.inputs(workload, (made[0], made[1], units, *made[3:]), 0.5)
        from tunefa.measure import reference

        p.append(reference.attention(one, torch.float64)[0][..., 0])
    v = made[2].double().norm(dim=-1)
    if workload.varlen:
        spread = torch.stack([x * v[i].repeat_interleave(2) for i, x in enumerate(p)]).norm(dim=0).T
    else:
        of_heads = v.repeat_interleave(2, 1)
        spread = torch.stack([x * of_heads[:, :, [i]] for i, x in enumerate(p)]).norm(dim=0)
    size = found.lse.abs().nan_to_num(0.0, 0.0, 0.0)
    of_p = 2**-12 + 2**-20 * size + (2**-11 * check.SOFTCAP if workload.softcap else 0.0)
    assert torch.allclose(found.limits, ROW_MARGIN * (of_p * spread + 2**-12 * found.norms))


def compared(spoil: Any, workload: Workload = SHAPE) -> Comparison:
    found = expected(workload)
    out, lse = found.out.clone(), found.lse.clone()
    spoil(out, lse)
    return found.compare(out.transpose(0, 1) if workload.varlen else out, lse)


def test_the_worst_row_is_named() -> None:
    def spoil(out: Any, lse: Any) -> None:
        out[1, 2, 33] *= 1.02
        out[0, 3, 7] *= 1.03

    found = compared(spoil)
    assert found.error < TOLERANCE["bf16"] / 2 and not found.passed
    row = "the output of row 7 of head 3 in batch 0 is off by 3.0e-02 (limit 7e-03)"
    assert str(found.row) == row and found.reason.startswith(f"{row}; error ")
    assert found.reason.endswith(f", on {SHAPE}")


def test_a_logsumexp_is_named_where_it_is_further_off() -> None:
    def spoil(out: Any, lse: Any) -> None:
        out[1, 2, 33] *= 1.02
        lse[0, 1, 2] -= 0.5

    row = compared(spoil).row
    assert str(row) == "the logsumexp of row 2 of head 1 in batch 0 is off by 5.0e-01 (limit 1e-03)"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_what_is_not_finite_never_passes(value: float, which: int) -> None:
    def spoil(*outputs: Any) -> None:
        outputs[which][0, 1, 2] = value

    found = compared(spoil)
    assert not found.passed and found.row is not None and math.isinf(found.row.error)
    assert " of row 2 of head 1 in batch 0 is NaN or infinite (not written" in found.reason


def test_rows_of_packed_sequences_count_from_their_own() -> None:
    packed = Workload.parse("b3_h4_kv2_q30_d32_bf16_varlen")
    (first, _), (second, _), _ = packed.lengths
    assert sequence_of(packed, first - 1) == (0, first - 1)
    assert sequence_of(packed, first + second) == (2, 0)

    def spoil(out: Any, lse: Any) -> None:
        out[3, first + 4] *= 1.5

    assert "row 4 of head 3 in sequence 1 is off" in compared(spoil, packed).reason


@pytest.mark.parametrize(
    ("scale", "off", "passes"),
    [(0.1, 0.019, True), (0.1, 0.021, False), (30.0, 0.2, True), (30.0, 20.0, False)],
)
def test_large_scores_of_e4m3_may_be_further_off(scale: float, off: float, passes: bool) -> None:
    workload = Workload.parse("h2_q20_k30_d32_e4m3_full")
    inputs = check.inputs(workload, check.tensors(workload, "cpu", seed=0), scale)
    found = Expected.of(workload, inputs, torch.float64)
    wrong = torch.where(found.lse > 100.0, found.lse + off, found.lse)
    if scale < 1.0:
        wrong = found.lse + off
    assert bool((wrong != found.lse).any())
    assert found.compare(found.out, wrong).passed is passes


def test_rows_may_lose_what_tensor_cores_cut_off_only_if_sums_are_to_be_fast() -> None:
    """A fourth is missing after 16,384 keys with positive values."""
    for accuracy, passes in (("", False), ("_fast", True)):
        workload = Workload.parse(f"h1_q4_k16384_d32_e4m3_full{accuracy}")
        q, k, v, *rest = check.tensors(workload, "cpu", seed=0)
        v = (torch.rand(v.shape) + 0.5).to(v.dtype)
        found = Expected.of(workload, check.inputs(workload, (q, k, v, *rest), 1e-3), torch.float64)
        assert found.compare(0.74 * found.out, found.lse).passed is passes
        assert not found.compare(0.3 * found.out, found.lse).passed


def test_a_comparison_without_rows_is_judged_by_its_error() -> None:
    assert Comparison(1e-3, 0.0, SHAPE).passed and not Comparison(1e-2, 0.0, SHAPE).passed
    assert Comparison(1e-2, 0.0, Workload.parse(f"{SHAPE}_fast")).passed
    assert not Comparison(math.nan, 0.0, SHAPE).passed
    stray = Comparison(1e-3, 0.0, SHAPE, repeatable=False, strayed=True)
    assert not stray.passed and "memory outside" in stray.reason
    wrong = Row("output", "row 1 of head 2 in batch 3", 0.5, 0.01, "V is positive")
    assert not Comparison(1e-3, 0.0, SHAPE, row=wrong).passed
    assert str(wrong).endswith("in batch 3 is off by 5.0e-01 (limit 1e-02), where V is positive")


def test_a_soft_cap_widens_the_rows_of_e4m3_only() -> None:
    def widened(dtype: str) -> float:
        made = []
        for softcap in ("", "_softcap"):
            workload = Workload.parse(f"h2_q20_k30_d32_{dtype}_full{softcap}")
            inputs = check.inputs(workload, check.tensors(workload, "cpu", seed=0), 1e-3)
            found = Expected.of(workload, inputs, torch.float64)
            made.append((found.limits / found.norms).mean())  # tiny scores are not capped
        return float(made[1] - made[0])

    assert 2**-5 < widened("e4m3") < 2**-3 and abs(widened("fp16")) < 2**-9
