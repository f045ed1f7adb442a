"""tunefa/measure/sdpa.py: PyTorch's attention gives what the reference gives, whatever the mask."""

from __future__ import annotations

import pytest
import torch

from tunefa.measure import check, reference, sdpa
from tunefa.spec.workload import Workload


@pytest.mark.parametrize("rows", [1024, 32])
@pytest.mark.parametrize(
    "sizes",
    [
        "q64_k64",
        "q90_k70",
        "q60_k130_full",
        "q60_k130",
        "q90_k70_w20",
        "q70_k90_w20_a9",
        "q90_k70_a9",
        "q64_full_w20",
        "b3_q7_k13_varlen",
    ],
)
def test_it_computes_what_the_reference_computes(
    sizes: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdpa, "_MASKED_ROWS", rows)
    workload = Workload.parse(f"{sizes}_h4_kv2_d32_dv48_fp32")
    made = check.tensors(workload, "cpu", seed=3)
    inputs = check.inputs(workload, made, 0.3)
    right, _ = reference.attention(inputs, torch.float64)
    out = torch.full_like(made[3], torch.nan)
    sdpa.write(inputs, out)
    # PyTorch leaves NaN in rows that see no key; kernels write 0 there.
    torch.testing.assert_close(out.nan_to_num(0.0), right.float(), atol=1e-5, rtol=1e-4)
    assert not torch.isnan(out[right.abs().sum(-1) > 0]).any()
