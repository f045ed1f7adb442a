"""Runs the Ascend kernel in Triton's interpreter: `python -m tests.support.ascend_interpreted`.

Prints one JSON object a line: the case and what became of it. TRITON_INTERPRET=1 must be set before
Triton is imported.
"""

from __future__ import annotations

import json
import math
from typing import Any

from tests.support import triton_interpreter
from tests.support.interpreter import thinned
from tunefa.compile.contract import LaunchSpec
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = "attention_fwd_ascend"
# Even ones and tails of both lengths, groups of heads. Most configs run with the first.
WORKLOADS = [
    "h4_kv2_q128_k128_d64_fp16_causal",
    "h2_q100_k230_d64_bf16_causal",
    "h2_q1_k77_d128_fp16_causal",
    "h2_q64_k192_d128_fp16_full",
    "h4_kv2_b2_q70_k101_d64_bf16_full",
    "h1_q50_k128_d256_bf16_full",
]
CORES = 3
"""Programs, fewer than tiles: each walks over several."""


def let_it_take_any_length() -> None:
    """Upstream Triton takes powers of two only, triton-ascend any length: its checks go."""
    from triton.language import core, semantic

    def arange(self: Any, start: int, end: int, *, ret_ty: Any = None) -> Any:
        made = core.block_type(core.int32, [end - start])
        handle = self.builder.create_make_range(made.to_ir(self.builder), start, end)
        return self.tensor(handle, made)

    validated: Any = core
    validated.validate_block_shape = math.prod
    semantics: Any = semantic.TritonSemantic
    semantics.arange = arange


def main() -> None:
    """Prints each case with its verdict."""
    import torch

    from tunefa.measure import check

    triton_interpreter.prepare()
    let_it_take_any_length()
    kernel, target = kernels.load(KERNEL), Target.named("ascend910b3")
    module: Any = kernel.module
    for case, config in thinned(
        Case(kernel, each, target) for each in map(Workload.parse, WORKLOADS)
    ):
        workload = case.workload
        made = check.tensors(workload, "cpu", seed=0)
        scale = workload.head_dim**-0.5
        grid, arguments = LaunchSpec(case, config, scale).arguments(made)
        module.device_function()[(min(CORES, grid[0]),)](*arguments)
        verdict = check.compare(workload, made, scale, torch.float64)
        found = {"passed": verdict.passed, "reason": verdict.reason}
        print(json.dumps({"workload": str(workload), "config": config, **found}), flush=True)


if __name__ == "__main__":
    main()
