"""tunefa/store/exports/triton.py: what Triton's autotuner is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.sample_exports import CUDA, FAST, GUESS, Q4096, Q8192, SLOW, evaluate
from tests.support.sample_records import CONFIG, measured, predicted
from tunefa.store import exports
from tunefa.store.exports import triton as triton_export


def test_triton_configs_evaluate() -> None:
    triton = pytest.importorskip("triton")
    text = exports.get("triton").dump([SLOW, GUESS, CUDA, FAST])
    configs = evaluate(text)["CONFIGS"]
    assert list(configs) == [Q4096, Q8192]
    fast, slow = configs[Q4096]
    assert isinstance(fast, triton.Config)
    assert fast.kwargs == {"BLOCK_M": 128, "BLOCK_N": 64}, "the others are of tunefa's kernel"
    assert (fast.num_warps, fast.num_stages, fast.maxnreg) == (8, 3, None)
    assert (slow.kwargs["BLOCK_M"], slow.maxnreg) == (64, 168)
    assert f"# {Q4096}: {FAST.summary}" in text
    assert f"# left out, not a Triton kernel: {Q4096}: {CUDA.summary}" in text


def test_configs_that_differ_only_in_what_is_not_exported_are_tried_once() -> None:
    pytest.importorskip("triton")
    twin = measured("fwd_q4096", config={**CONFIG, "USE_TMA": 0}, median_us=500.0)
    text = exports.get("triton").dump([FAST, twin])
    assert len(evaluate(text)["CONFIGS"][Q4096]) == 1
    assert f"# left out, the same config: {Q4096}: {twin.summary}" in text


def test_kernels_of_a_user_s_functions_are_left_out() -> None:
    flex = measured(kernel="flex_attention_fwd.0123456789ab")
    for name in ("triton", "flex"):
        text = exports.get(name).dump([flex, FAST])
        assert f": {flex.summary}" in text and "left out" in text
    assert not triton_export.is_of_gpu(flex) and triton_export.is_of_gpu(FAST)


def test_configs_for_npus_are_those_of_triton_ascend() -> None:
    config = {"BLOCK_M": 48, "BLOCK_N": 432, "SPLIT_MASK_LOOP": 0, "MULTIBUFFER": 1,
              "TILE_MIX_VECTOR_LOOP": 2, "WORKSPACE_BUFFERS": 4, "L0C_BUFFERS": 1,
              "UNIT_FLAG": 0}  # fmt: skip
    npu = predicted(kernel="attention_fwd_ascend", arch="ascend910b3", objective="modelled",
                    config=config)  # fmt: skip
    written = exports.get("triton").dump([npu])
    assert "written by tunefa for ascend910b3, for triton-ascend." in written

    def config_of_triton_ascend(*arguments: Any, **options: Any) -> tuple[Any, ...]:
        return *arguments, options

    scope: dict[str, Any] = {"triton": SimpleNamespace(Config=config_of_triton_ascend)}
    exec(compile(written.replace("import triton\n", ""), "exported", "exec"), scope)
    [(parameters, options)] = scope["CONFIGS"][Q4096]
    assert parameters == {"BLOCK_M": 48, "BLOCK_N": 432}
    assert options == {
        "multibuffer": True, "tile_mix_vector_loop": 2, "set_workspace_multibuffer": 4,
        "limit_auto_multi_buffer_of_local_buffer": "no-l0c", "unit_flag": False,
    }  # fmt: skip
