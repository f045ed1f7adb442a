"""tunefa/measure/ceilings.py: real products and copies, on the CPU."""

from __future__ import annotations

import time

import pytest
import torch

from tunefa.measure import ceilings


def test_the_rates_are_those_of_the_same_work_timed_by_hand() -> None:
    found = ceilings.measured("fp32", "cpu")
    size = ceilings.SIZE["cpu"]
    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = []
    for _ in range(9):
        begun = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - begun)
    by_hand = 2 * size**3 / min(seconds) / 1e12
    assert found.dtype == "fp32"
    assert by_hand / 30 < found.matmul_tflops < by_hand * 3
    assert 0.1 < found.copy_gb_per_s < 2000


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "e4m3"])
def test_every_dtype_has_a_ceiling(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceilings.SIZE, "cpu", 128)  # a CPU multiplies e4m3 slowly
    found = ceilings.measured(dtype, "cpu")
    assert found.matmul_tflops > 0
    assert found.dtype in (dtype, "bf16")
