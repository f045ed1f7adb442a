"""tunefa/measure/check.py: right kernels pass, and kernels that are wrong in usual ways do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tunefa.measure import check, reference, sdpa
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.comparison import TOLERANCE, Comparison
from tunefa.spec.workload import DTYPES, Workload

SMALL = Workload.parse("b2_h4_kv2_q7_k13_d32_dv48_fp32_causal")


def solved(workload: Workload = SMALL) -> tuple[Any, ...]:
    """Tensors in which a perfect kernel has written its outputs."""
    made = check.tensors(workload, "cpu", seed=0)
    q, k, v, out, lse, *descales = made
    mask = (workload.window_left, workload.window_right)
    inputs = AttentionInputs(
        q, k, v, workload.causal, 0.2, *mask, check.softcap(workload), descales
    )
    right, right_lse = reference.attention(inputs, torch.float64)
    out.copy_(right)
    lse.copy_(right_lse)
    return made


def verdict(made: tuple[Any, ...], workload: Workload = SMALL) -> Comparison:
    return check.compare(workload, made, 0.2, torch.float64)


PACKED = Workload.parse("b3_h4_kv2_q7_k13_d32_dv48_fp32_causal_varlen")


def test_packed_sequences_are_compared_one_by_one() -> None:
    made = check.tensors(PACKED, "cpu", seed=0)
    q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k = made
    whole = AttentionInputs(q, k, v, True, 0.2, cu_seqlens=(cu_seqlens_q, cu_seqlens_k))
    for written, right in zip((out, lse), reference.attention(whole, torch.float64), strict=True):
        written.copy_(right)
    assert verdict(made, PACKED).passed
    sdpa.write(check.inputs(PACKED, made, 32**-0.5), out)  # another scale than 0.2
    assert not verdict(made, PACKED).passed
    assert check.compare(PACKED, made, 32**-0.5, torch.float64).error < 1e-5
    out[int(cu_seqlens_q[1])] = 0.0
    assert not check.compare(PACKED, made, 32**-0.5, torch.float64).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", ["q7_k13", "q13_k7", "q1_k1", "q64_k64", "q5_k1", "q9_k12_w4"])
def test_a_perfect_kernel_passes(sizes: str, dtype: str) -> None:
    workload = Workload.parse(f"h4_kv2_{sizes}_d32_{dtype}_causal")
    found = verdict(solved(workload), workload)
    assert found.passed and found.workload == workload
    assert found.error < TOLERANCE[dtype] / 2 and found.lse_error < 1e-6


def break_nothing_written(out: Any, lse: Any) -> None:
    out.fill_(float("nan"))
    lse.fill_(float("nan"))


def break_one_output(out: Any, lse: Any) -> None:
    out[0, 0, 0, 0] = float("nan")


def break_one_lse(out: Any, lse: Any) -> None:
    lse[0, 0, -1] = float("nan")


def break_scale(out: Any, lse: Any) -> None:
    out.mul_(1.001)


def break_lse(out: Any, lse: Any) -> None:
    lse[1, 3, -1] += 0.002


def break_infinite_output(out: Any, lse: Any) -> None:
    out[0, 0, 0, 0] = float("inf")


def break_empty_row(out: Any, lse: Any) -> None:
    lse[0, 0, -1] = float("-inf")


def break_head_order(out: Any, lse: Any) -> None:
    out.copy_(out.flip(1).clone())


BREAKS = [value for name, value in list(globals().items()) if name.startswith("break_")]


@pytest.mark.parametrize("break_it", BREAKS)
def test_a_wrong_kernel_does_not_pass(break_it: Any) -> None:
    made = solved()
    break_it(*made[3:])
    found = verdict(made)
    assert not found.passed
    assert str(SMALL) in found.reason and "limit" in found.reason


def test_rows_without_a_key() -> None:
    """Rows 0..5 of 13 see none of 7 keys: out is 0, lse -inf, and nothing else passes."""
    workload = Workload.parse("h4_kv2_q13_k7_d32_fp32_causal")
    made = solved(workload)
    out, lse = made[3:]
    assert torch.isneginf(lse[:, :, :6]).all() and (out[:, :, :6] == 0).all()
    assert verdict(made, workload).passed
    for wrong_lse in (float("inf"), 0.0, float("nan")):
        lse[0, 0, 0] = wrong_lse
        assert not verdict(made, workload).passed
    lse[0, 0, 0] = float("-inf")
    for wrong in (float("nan"), 1.0):
        out[0, 0, 0, 0] = wrong
        assert not verdict(made, workload).passed


def test_a_window_that_is_ignored_or_off_by_one_does_not_pass() -> None:
    workload = Workload.parse("h4_kv2_q40_k50_d32_fp32_causal_w9")
    made = solved(workload)
    assert verdict(made, workload).passed
    for left in (None, 7, 9):
        assert not verdict(made, replace(workload, window_left=left)).passed
    full = replace(workload, causal=False, window_right=2)
    made = solved(full)
    assert verdict(made, full).passed
    for right in (None, 1, 3):
        assert not verdict(made, replace(full, window_right=right)).passed


def test_only_empty_rows() -> None:
    # Full attention always has a key; causal with one key and many queries nearly never.
    workload = Workload.parse("h1_kv1_q64_k1_d16_fp32_causal")
    assert verdict(solved(workload), workload).passed


def test_an_ignored_soft_cap_does_not_pass() -> None:
    workload = replace(SMALL, softcap=True)
    assert not verdict(solved(), workload).passed
    assert verdict(solved(workload), workload).passed
