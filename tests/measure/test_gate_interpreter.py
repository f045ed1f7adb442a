"""tunefa/measure/gate.py in a language's interpreter: right kernels pass, wrong ones do not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support import kept_interpreter
from tests.support.own_kernels import OwnKernels
from tunefa.compile.workers import Workers
from tunefa.measure import check, gate
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

TARGET = Target.named("sm90")
KERNEL = kernels.load("attention_fwd_triton")
CONFIG: dict[str, Any] = {
    "BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 1, "num_stages": 1,
    "USE_TMA": 0, "maxnreg": 0, "L2_SECTION_HEADS": 1, "PACK_GQA": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def process() -> Iterator[Workers]:
    with kept_interpreter.started() as found:
        yield found


@pytest.mark.parametrize(
    ("workload", "changes"),
    [
        ("q8192_d64_fp16_causal", {}),
        ("q8192_h4_d72_dv40_fp32_full", {"BLOCK_N": 32}),
        ("q8192_h8_kv2_d64_bf16_causal", {"USE_TMA": 1, "PACK_GQA": 1, "L2_SECTION_HEADS": 4}),
    ],
)
def test_the_interpreter_passes_what_is_right(
    workload: str, changes: dict[str, Any], process: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_interpreter.install(monkeypatch, process)
    found = gate.in_interpreter(
        Case(KERNEL, Workload.parse(workload), TARGET), {**CONFIG, **changes}
    )
    assert found.passed, found.reason
    # Its rounding of bf16 is not ours to judge, so fp16 stands in for it.
    assert found.workload.dtype == ("fp32" if "fp32" in workload else "fp16")


WRONG = {
    "never_rescaled": ("acc = acc * row_scale[:, None]", "acc = acc", "logsumexp"),
    "top_left_mask": ("offset = seqlen_k - seqlen_q", "offset = 0", "logsumexp"),
    "tail_not_masked": (
        *("keys[None, :] <= last_key[:, None]", "keys[None, :] <= seqlen_k + 99"),
        "logsumexp",
    ),
    "wrong_kv_head": ("head_kv = head // GROUP", "head_kv = head * 0", "logsumexp"),
    "lse_in_base_2": (
        *("row_max * LN_2 + tl.log(row_sum)", "row_max + tl.log2(row_sum)"),
        "the logsumexp of row",
    ),
    "row_not_written": (
        *("lse_rows = ", "real = real & (queries != 5)\n    lse_rows = "),
        "row 5 of head 0 in batch 0 is NaN or infinite",
    ),
    "one_row_too_large": (
        "seen = row_sum > 0.0",
        "seen = row_sum > 0.0\n    odd = (queries == 7) & (row_heads == 2) & (batch == 1)\n"
        "    acc = tl.where(odd[:, None], acc * 1.25, acc)",
        "the output of row 7 of head 2 in batch 1 is off by 2.5e-01",
    ),
    "tail_times_0": (  # of K and V: scores are masked, the probabilities 0 are multiplied with V
        "elif MASK:\n            block = tl.load(where, mask=(rows < seqlen)[:, None], other=0.0)",
        "elif MASK:\n            block = tl.load(where)",
        "is NaN or infinite (not written, overflowed, or it read the NaN beside the inputs)",
    ),
    "sums_saturate": (  # 45 keys of about 0.9 each; sums of both signs stay below 15
        "acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)",
        "acc = tl.minimum(tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION), 30.0)",
        "where all scores are equal and V",
    ),
}
"""By mistake: the replaced device code, its replacement, and a part of the reason."""


def _replaced(old: str, new: str, source: str) -> str:
    assert old in source
    return source.replace(old, new)


def test_the_interpreter_finds_what_is_wrong(own_kernels: OwnKernels) -> None:
    """One process for all of them: most of the time of a check is its start."""
    workload = check.ragged(Workload.parse("q8192_h4_kv2_d32_fp16"), CONFIG)
    with Workers(1) as process:
        for name, (old, new, sign) in WRONG.items():
            kernel = own_kernels.add_attention(name, device=partial(_replaced, old, new))
            names = Case(kernel, workload, TARGET).names
            found = process.submit(gate._interpret, (names, CONFIG), 60.0).result()
            assert not found.passed and sign in found.reason, f"{name}: {found.reason}"


def test_what_a_kernel_raises_in_the_interpreter_comes_out(own_kernels: OwnKernels) -> None:
    kernel = own_kernels.add_attention("raises", device=lambda source: source.replace(
        "tile, head_index = _tile_of_program(", "tile, head_index = undefined("))  # fmt: skip
    case = Case(kernel, Workload.parse("q8192_h4_kv2_d32_fp16"), TARGET)
    with pytest.raises(Exception, match="undefined"):
        gate.in_interpreter(case, CONFIG)
