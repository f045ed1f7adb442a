"""tunefa/store/exports/flex.py: kernel options of FlexAttention."""

from __future__ import annotations

import pytest

from tests.support.sample_exports import CUDA, FAST, GUESS, Q4096, Q8192, SLOW, evaluate
from tunefa.store import exports


def test_flex_options_are_the_best_record_s() -> None:
    text = exports.get("flex").dump([SLOW, GUESS, CUDA, FAST])
    assert evaluate(text)["KERNEL_OPTIONS"] == {
        Q4096: {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3},
        Q8192: {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2},
    }
    assert "left out, it has no BLOCK_M, BLOCK_N, num_warps, num_stages" in text
    assert f"left out, not the best for {Q4096}: {SLOW.summary}" in text


def test_flex_options_are_options_of_flex_attention() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    options = evaluate(exports.get("flex").dump([FAST]))["KERNEL_OPTIONS"][Q4096]
    assert set(options) <= set(flex.FlexKernelOptions.__annotations__)
    assert "USE_TMA" not in options, "FlexAttention's option of that name is another one"
