"""Runs the Ascend kernel in Triton's interpreter: `python -m tests.ascend.interpreted`.

Prints one JSON object a line: the case and what became of it. TRITON_INTERPRET=1 must be set before
Triton is imported.
"""

from __future__ import annotations

import json
import os
from typing import Any

from tests.contracts.interpreter import _let_it_multiply_bf16, covering
from tunefa import arch as archs
from tunefa import kernel as kernels
from tunefa.workload import Workload

KERNEL = "attention_fwd_ascend"
WORKLOADS = [
    "h4_kv2_b2_q128_k128_d64_fp16_causal",
    "h2_q128_k256_d64_bf16_causal",
    "h2_q64_k192_d128_fp16_full",
    "h2_kv1_q64_k64_d128_bf16_causal",
    "h1_q64_k128_d256_bf16_full",
]
CORES = 3
"""Programs, fewer than tiles: each walks over several."""


def main() -> None:
    """Prints each case with its verdict."""
    import torch

    from tunefa import check

    assert os.environ["TRITON_INTERPRET"] == "1"
    _let_it_multiply_bf16()
    kernel, arch = kernels.load(KERNEL), archs.load("ascend910b3")
    module: Any = kernel.module
    for workload in map(Workload.parse, WORKLOADS):
        for config in covering(kernel, workload, arch):
            made = check.tensors(workload, "cpu", seed=0)
            scale = workload.head_dim**-0.5
            grid, arguments = module.arguments(made, workload, config, scale)
            module.attention_fwd[(min(CORES, grid[0]),)](*arguments)
            verdict = check.compare(workload, made, scale, torch.float64)
            found = {"passed": verdict.passed, "reason": verdict.reason}
            print(json.dumps({"workload": str(workload), "config": config, **found}), flush=True)


if __name__ == "__main__":
    main()
