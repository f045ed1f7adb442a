"""tunefa/measure/check.py: right kernels pass, and no way of being wrong that kernels have does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.own_kernels import OwnKernels
from tunefa.measure import check, reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.check import TOLERANCE
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import DTYPES, Workload

TARGET = Target.named("sm90")
KERNEL = kernels.load("attention_fwd_triton")
SMALL = Workload.parse("b2_h4_kv2_q7_k13_d32_dv48_fp32_causal")
CONFIG: dict[str, Any] = {
    "BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 1, "num_stages": 1,
    "USE_TMA": 0, "maxnreg": 0, "L2_SECTION_HEADS": 1, "PACK_GQA": 0,
}  # fmt: skip


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


def verdict(made: tuple[Any, ...], workload: Workload = SMALL) -> check.Verdict:
    return check.compare(workload, made, 0.2, torch.float64)


PACKED = Workload.parse("b3_h4_kv2_q7_k13_d32_dv48_fp32_causal_varlen")


def test_packed_tensors_have_the_lengths_of_the_workload() -> None:
    q, k, v, out, lse, *cu_seqlens = check.tensors(PACKED, "cpu", seed=0)
    assert q.shape == (15, 4, 32) and k.shape == (27, 2, 32) and v.shape == (27, 2, 48)
    assert out.shape == (15, 4, 48) and lse.shape == (4, 15)
    for starts, lengths in zip(cu_seqlens, zip(*PACKED.lengths, strict=True), strict=True):
        assert starts.dtype == torch.int32 and starts[0] == 0
        assert tuple(starts.diff().tolist()) == lengths
    assert all(each.is_contiguous() for each in (q, k, v, out, lse))


def test_packed_sequences_are_compared_one_by_one() -> None:
    made = check.tensors(PACKED, "cpu", seed=0)
    q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k = made
    whole = AttentionInputs(q, k, v, True, 0.2, cu_seqlens=(cu_seqlens_q, cu_seqlens_k))
    for written, right in zip((out, lse), reference.attention(whole, torch.float64), strict=True):
        written.copy_(right)
    assert verdict(made, PACKED).passed
    check._run_sdpa(made, PACKED)  # whose scale is another
    assert not verdict(made, PACKED).passed
    assert check.compare(PACKED, made, 32**-0.5, torch.float64).error < 1e-5
    out[int(cu_seqlens_q[1])] = 0.0
    assert not check.compare(PACKED, made, 32**-0.5, torch.float64).passed


def test_ragged_packed_sequences_are_some() -> None:
    shape = check.ragged(Workload.parse("b32_q8192_varlen"), CONFIG)
    assert shape.varlen and len({rows for rows, _ in shape.lengths}) == 4


def test_tensors_have_the_shapes_of_the_workload() -> None:
    q, k, v, out, lse = check.tensors(SMALL, "cpu")
    assert q.shape == (2, 4, 7, 32)
    assert k.shape == (2, 2, 13, 32)
    assert v.shape == (2, 2, 13, 48)
    assert out.shape == (2, 4, 7, 48)
    assert lse.shape == (2, 4, 7) and lse.is_contiguous() and lse.dtype == torch.float32
    # Stored BSHD, and nothing in the outputs yet.
    assert all(tensor.transpose(1, 2).is_contiguous() for tensor in (q, k, v, out))
    assert out.isnan().all() and lse.isnan().all()
    assert abs(q.std().item() - 1) < 0.2


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_have_the_dtype_of_the_workload(dtype: str) -> None:
    made = check.tensors(replace(SMALL, dtype=dtype), "cpu")
    assert {tensor.dtype.itemsize for tensor in made[:3]} == {DTYPES[dtype]}
    assert made[3].dtype.itemsize == max(2, DTYPES[dtype])


def test_a_seed_makes_the_same_tensors_and_none_makes_others() -> None:
    first, again, other = (check.tensors(SMALL, "cpu", seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(check.tensors(SMALL, "cpu")[0], check.tensors(SMALL, "cpu")[0])


def test_making_tensors_leaves_the_callers_randomness_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    check.tensors(SMALL, "cpu")
    check.tensors(SMALL, "cpu", seed=3)
    assert torch.equal(torch.get_rng_state(), state)


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


@pytest.mark.parametrize(
    "text",
    [
        "q70_k90_w20",
        "q90_k70_w20",
        "q60_k130",
        "q64_w1",
        "q64_full",
        "q70_k90_w20_a9",
        "q90_k70_a9",
        "q64_full_w20",
    ],
)
def test_the_limit_is_the_error_of_pytorch_s_attention(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same attention: a mask that differed would make it useless."""
    monkeypatch.setattr(check, "_MASKED_ROWS", 32)
    shape = Workload.parse(f"{text}_h4_kv2_d32_fp32")
    assert check.ROUNDING["fp32"] <= check.Gate("cpu").limit(shape) < TOLERANCE["fp32"]


def test_only_empty_rows() -> None:
    # Full attention always has a key; causal with one key and many queries nearly never.
    workload = Workload.parse("h1_kv1_q64_k1_d16_fp32_causal")
    assert verdict(solved(workload), workload).passed


@pytest.mark.parametrize("block_m", [16, 64, 256])
@pytest.mark.parametrize("block_n", [16, 256])
def test_ragged_shapes_divide_no_tile(block_m: int, block_n: int) -> None:
    workload = Workload.parse("b4_h32_kv8_q8192_d80_dv96_fp16_full")
    shape = check.ragged(workload, {"BLOCK_M": block_m, "BLOCK_N": block_n})
    same = ("op", "group", "head_dim", "head_dim_v", "dtype", "causal", "window_left")
    assert all(getattr(shape, name) == getattr(workload, name) for name in same)
    assert shape.heads_kv == 2
    assert shape.seqlen_q % block_m and shape.seqlen_k % block_n and shape.seqlen_q > block_m
    assert shape.seqlen_k > shape.seqlen_q and shape.seqlen_k > 2 * block_n
    packed_rows = shape.seqlen_q * shape.group
    assert packed_rows % block_m


@pytest.mark.parametrize("warpgroups", [1, 2, 3, 4])
def test_ragged_shapes_are_more_than_a_tile_of_warpgroups(warpgroups: int) -> None:
    shape = check.ragged(Workload.parse("q8192"), {"WARPGROUPS": warpgroups, "BLOCK_N": 64})
    assert 64 * warpgroups < shape.seqlen_q < 128 * warpgroups


@pytest.mark.parametrize("block_m", [16, 64, 256])
@pytest.mark.parametrize("block_n", [16, 256])
def test_ragged_windows_cross_blocks_and_skip_some(block_m: int, block_n: int) -> None:
    workload = Workload.parse("h32_kv8_q8192_causal_w4096")
    shape = check.ragged(workload, {"BLOCK_M": block_m, "BLOCK_N": block_n})
    assert shape.window_left is not None
    window = shape.window_left + 1
    assert block_n < window < 2 * block_n
    assert shape.seqlen_q % block_m and shape.seqlen_k % block_n and window % block_n
    diagonal = shape.seqlen_k - shape.seqlen_q
    assert 0 < diagonal < window  # the first rows see every key up to their own
    last_tile = (shape.seqlen_q - 1) // block_m * block_m
    assert last_tile + diagonal - window + 1 >= 2 * block_n  # keys that it does not see


@pytest.mark.parametrize("text", ["w4096_a100", "full_w4096", "a4096", "w1_a1"])
def test_ragged_windows_of_two_sides_keep_theirs(text: str) -> None:
    workload = Workload.parse(f"q8192_{text}")
    for block in (16, 64, 256):
        shape = check.ragged(workload, {"BLOCK_M": block, "BLOCK_N": block})
        for name, own_key in (("window_left", 1), ("window_right", 0)):
            asked, kept = getattr(workload, name), getattr(shape, name)
            beyond = block + block // 2 + 1
            assert kept == (asked if asked is None else min(asked, beyond - own_key))
        first = (shape.seqlen_k - shape.seqlen_q) + (shape.window_right or 0)
        assert shape.window_right is None or first < shape.seqlen_k - 2 * block  # keys not seen


def test_an_ignored_soft_cap_does_not_pass() -> None:
    workload = replace(SMALL, softcap=True)
    assert not verdict(solved(), workload).passed
    assert verdict(solved(workload), workload).passed
    assert check.Gate("cpu").limit(workload) == TOLERANCE["fp32"]


def test_ragged_windows_are_never_wider_than_asked() -> None:
    shape = check.ragged(Workload.parse("q8192_w3"), {"BLOCK_M": 64, "BLOCK_N": 64})
    assert shape.window_left == 2
    assert check.ragged(Workload.parse("q8192"), CONFIG).window_left is None


@pytest.mark.parametrize(
    ("workload", "changes"),
    [
        ("q8192_d64_fp16_causal", {}),
        ("q8192_h4_d72_dv40_fp32_full", {"BLOCK_N": 32}),
        ("q8192_h8_kv2_d64_bf16_causal", {"USE_TMA": 1, "PACK_GQA": 1, "L2_SECTION_HEADS": 4}),
    ],
)
def test_the_interpreter_passes_what_is_right(workload: str, changes: dict[str, Any]) -> None:
    found = check.in_interpreter(
        Case(KERNEL, Workload.parse(workload), TARGET), {**CONFIG, **changes}
    )
    assert found.passed, found.reason
    # Its rounding of bf16 is not ours to judge, so fp16 stands in for it.
    assert found.workload.dtype == ("fp32" if "fp32" in workload else "fp16")


WRONG = {
    "never_rescaled": ("acc = acc * row_scale[:, None]", "acc = acc"),
    "top_left_mask": ("offset = seqlen_k - seqlen_q", "offset = 0"),
    "tail_not_masked": ("keys[None, :] <= last_key[:, None]", "keys[None, :] <= seqlen_k + 99"),
    "wrong_kv_head": ("head_kv = head // GROUP", "head_kv = head * 0"),
    "lse_in_base_2": ("row_max * LN_2 + tl.log(row_sum)", "row_max + tl.log2(row_sum)"),
    "row_not_written": ("lse_rows = ", "real = real & (queries != 5)\n    lse_rows = "),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_the_interpreter_finds_what_is_wrong(own_kernels: OwnKernels, name: str) -> None:
    old, new = WRONG[name]

    def change(source: str) -> str:
        assert old in source
        return source.replace(old, new)

    kernel = own_kernels.add_attention(name, device=change)
    case = Case(kernel, Workload.parse("q8192_h4_kv2_d32_fp16"), TARGET)
    found = check.in_interpreter(case, CONFIG)
    assert not found.passed
    assert "logsumexp" in found.reason


def test_what_a_kernel_raises_in_the_interpreter_comes_out(own_kernels: OwnKernels) -> None:
    kernel = own_kernels.add_attention("raises", device=lambda source: source.replace(
        "tile, head_index = _tile_of_program(", "tile, head_index = undefined("))  # fmt: skip
    case = Case(kernel, Workload.parse("q8192_h4_kv2_d32_fp16"), TARGET)
    with pytest.raises(Exception, match="undefined"):
        check.in_interpreter(case, CONFIG)
