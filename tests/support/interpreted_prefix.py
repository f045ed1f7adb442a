"""Runs attention_decode_prefix_triton in Triton's interpreter, against its definition in fp64:
`python -m tests.support.interpreted_prefix`.

Prints one JSON object a line: the problem, the pages that the first kernel found, the largest
errors of out and lse, and whether a row without keys gave 0 and -inf. TRITON_INTERPRET=1 must be
set before Triton is imported.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from tests.support import triton_interpreter
from tests.support.prefix_calls import Problem, expected, tensors
from tunefa.compile.launch.interpreted import steps
from tunefa.compile.launch.triton_launch import for_triton
from tunefa.measure import ops
from tunefa.spec.target import Case

PROBLEMS: dict[str, tuple[Problem, dict[str, Any]]] = {
    "no shared page": (Problem([70, 200, 33], 0, 13), {}),
    "some shared pages": (Problem([170, 200, 133], 5, 13, group=4, sinks=True), {}),
    "lengths 0 and 1": (Problem([0, 300, 0, 1, 280], 10, 20), {}),
    "no keys in the first and last": (Problem([0, 300, 290, 0], 10, 20, group=2), {}),
    "negative and too long": (Problem([-7, 900, 310], 12, 20), {}),
    "no keys at all": (Problem([0, 0], 4, 5), {}),
    "one sequence": (Problem([150], 0, 10), {}),
    "one sequence with keys": (Problem([0, 150, 0], 0, 10), {}),
    "all of the cache": (Problem([320, 320, 320], 20, 20, group=3), {}),
    "all but the last page": (Problem([315, 310], 20, 20, softcap=True), {}),
    "several queries": (Problem([322, 321, 320], 21, 21, seqlen_q=3, group=2, sinks=True), {}),
    "fewer keys than queries": (Problem([2, 60, 50], 2, 4, seqlen_q=3), {}),
    "all queries see all": (Problem([320, 352], 20, 22, seqlen_q=3, causal=False), {}),
    "two tiles of one sequence": (
        Problem([140, 150], 8, 10, group=16, seqlen_q=5, heads_kv=1), {"PREFIX_BLOCK_M": 32}),
    "several splits of the prefix": (Problem([800, 770], 46, 50), {"PREFIX_TILES_PER_SM": 4}),
    "few splits": (Problem([2100, 2300], 30, 144), {"MAX_SPLITS": 8, "BLOCK_N": 128}),
    "pages of 64": (Problem([700, 650, 644], 10, 11, page_size=64, group=4), {}),
    "pages of 1": (Problem([37, 40], 31, 40, page_size=1), {}),
    "pages of 48": (Problem([200, 190], 3, 5, page_size=48, head_dim=40, head_dim_v=24), {}),
    "bf16, one stage": (Problem([170, 200], 5, 13, dtype="bf16"), {"num_stages": 1}),
}  # fmt: skip


def ran(problem: Problem, changes: dict[str, Any]) -> dict[str, Any]:
    """Runs the three kernels of a call, and compares."""
    case = Case.from_names("attention_decode_prefix_triton", problem.text, "sm90")
    spec = ops.of(case.workload).launch_spec(
        case, {**case.default(), "BLOCK_N": 32, "MIN_SPLIT_KEYS": 128, **changes}
    )
    made = tensors(problem)
    q, k, v = (made[name].transpose(1, 2) for name in ("q", "k_cache", "v_cache"))
    out = torch.full((*q.shape[:3], problem.head_dim_v), math.nan, dtype=q.dtype)
    lse = torch.full(q.shape[:3], math.nan)
    more = [made["sinks"]] if problem.sinks else []
    found = None
    given = q, k, v, out, lse, made["seqlens"], made["block_table"], *more
    for variant, grid, arguments in steps(spec, given):
        found = arguments[2] if found is None else found
        variant["function"]()[grid](*map(for_triton, arguments))
    assert found is not None
    right, right_lse = expected(problem, made, spec.softcap)
    right = right.transpose(1, 2)
    empty = right_lse == -math.inf
    assert bool((lse[empty] == -math.inf).all()) and bool((out[empty] == 0.0).all())
    away = (out.double() - right).norm(dim=-1) / right.norm(dim=-1).clamp_min(1e-3)
    off = (lse.double() - right_lse)[~empty].abs()
    worst = [float(each.max()) if each.numel() else 0.0 for each in (away[~empty], off)]
    return {"pages": int(found[2:].min()), "out": worst[0], "lse": worst[1]}


def main() -> None:
    """Prints what became of each problem."""
    triton_interpreter.prepare()
    for name, (problem, changes) in PROBLEMS.items():
        print(json.dumps({"name": name, **ran(problem, changes)}), flush=True)


if __name__ == "__main__":
    main()
