"""Runs the kernels before and after the Hopper backward in Triton's interpreter, in one process:
`python -m tests.support.backward_rows`, with TRITON_INTERPRET=1.

Prints one JSON object for each case: the largest errors of what they write.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

import torch
from torch import Tensor

from tunefa.compile.contract import LaunchSpec
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

CASES = [
    ("bwd_b2_h2_kv1_q70_k40_d40_fp16_full", {}),
    ("bwd_b1_h3_q130_k200_d64_fp16_causal", {}),
    ("bwd_b1_h2_q90_k128_d128_fp16_causal", {}),
    ("bwd_b1_h2_q200_k128_d80_fp16_full", {}),
    ("bwd_b1_h2_q65_k128_d64_fp16_full", {"DQ_SPLIT": 0, "STAGGER": 0, "PREFETCH_S": 0}),
]


def rows(tensors: tuple[Any, ...], spec: LaunchSpec) -> dict[str, float]:
    """Runs the preprocess kernel; returns errors of its three outputs.

    One row of each head sees no key.
    """
    _, _, _, out, lse, dout, dlse, *_, lse_log2, delta, dq_sum = tensors
    seqlen_q = out.shape[2]
    _run(spec, "preprocess", tensors)
    made = lse_log2.view(*out.shape[:2], -1)
    sums = delta.view(*out.shape[:2], -1)
    unseen = lse == -math.inf
    wanted = torch.where(unseen, math.inf, lse * math.log2(math.e))
    expected = (out.double() * dout.double()).sum(-1) - dlse
    expected[unseen] = 0.0
    return {
        "lse": _largest(made[..., :seqlen_q], wanted),
        "lse of no row": _largest(made[..., seqlen_q:], torch.tensor(math.inf)),
        "delta": _largest(sums[..., :seqlen_q], expected),
        "delta of no row": _largest(sums[..., seqlen_q:], torch.tensor(0.0)),
        "accumulator": _largest(dq_sum, torch.tensor(0.0)),
    }


def gradients(tensors: tuple[Any, ...], spec: LaunchSpec) -> dict[str, float]:
    """Runs the postprocess kernel on an accumulator in the order of registers; returns the error of
    dq."""
    dq, dq_sum = tensors[7], tensors[-1]
    dq_sum.copy_(torch.randn(dq_sum.shape))
    _run(spec, "postprocess", tensors)
    expected = in_rows(spec, tensors) * spec.scale
    return {"dq": float((dq.float() - expected).abs().max() / expected.abs().max())}


def in_rows(spec: LaunchSpec, tensors: tuple[Any, ...]) -> Tensor:
    """dQ's accumulator, in which 64 rows lie in the order of registers, in the shape of dq."""
    dq, dq_sum = tensors[7], tensors[-1]
    constants = spec.case.kernel.module.postprocess(spec.workload, spec.config)["constants"]
    columns, width = constants["COLUMNS"], constants["WIDTH"]
    rows = dq_sum.numel() // columns // (dq.shape[0] * dq.shape[1])
    row, column = torch.arange(rows)[:, None], torch.arange(columns)
    part, within, register = column // width, row % 64, column % width
    # PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16": the accumulator.
    lane = within % 8 * 4 + register % 8 // 2
    element = within % 16 // 8 * 2 + register % 2
    block = (register // 8 * 4 + within // 16) * 128 + lane * 4 + element
    place = row // 64 * (64 * columns) + part * (64 * width) + block
    whole: Tensor = dq_sum.view(*dq.shape[:2], -1)[..., place.flatten()]
    return whole.view(*dq.shape[:2], rows, columns)[:, :, : dq.shape[2], : dq.shape[3]]


def _run(spec: LaunchSpec, step: str, tensors: tuple[Any, ...]) -> None:
    module = spec.case.kernel.module
    function = getattr(module, step)(spec.workload, spec.config)["function"]()
    grid, arguments = getattr(spec, f"{step}_arguments")(tensors)
    function[grid](*arguments)


def _largest(found: Tensor, wanted: Tensor) -> float:
    """The largest difference; infinities of one sign are equal."""
    difference = (found.double() - wanted.double()).abs()
    return float(difference.where(found != wanted, torch.tensor(0.0)).nan_to_num(9e9).max())


def tensors_of(spec: LaunchSpec) -> tuple[Any, ...]:
    """Inputs and scratch memory full of NaN, heads behind rows; dlse has all strides or none."""
    w = spec.workload
    torch.manual_seed(0)

    def normal(heads: int, length: int) -> Tensor:
        made = torch.randn(w.batch, length, heads, w.head_dim, dtype=torch.float16)
        return made.transpose(1, 2)

    q, out, dout, dq = (normal(w.heads, w.seqlen_q) for _ in range(4))
    k, v, dk, dv = (normal(w.heads_kv, w.seqlen_k) for _ in range(4))
    lse = torch.randn(w.batch, w.heads, w.seqlen_q)
    lse[..., 3:4] = -math.inf
    dlse = torch.randn(w.batch, w.seqlen_q, w.heads).transpose(1, 2)
    if w.causal:
        dlse = torch.zeros(()).expand(lse.shape)
    call = (q, k, v, out, lse, dout, dlse, dq.fill_(math.nan), dk, dv)
    scratch = spec.scratch(call)
    return *call, *(torch.full(shape, math.nan, dtype=dtype) for shape, dtype in scratch)


def main() -> None:
    """Prints the errors of each case."""
    assert os.environ["TRITON_INTERPRET"] == "1"
    kernel = kernels.load("attention_bwd_gluon_sm90")
    for text, changes in CASES:
        case = Case(kernel, Workload.parse(text), Target.named("sm90"))
        config = {**case.default(), **changes}
        assert case.refusal(config) is None, config
        spec = LaunchSpec(case, config, 0.125)
        tensors = tensors_of(spec)
        print(json.dumps({**rows(tensors, spec), **gradients(tensors, spec)}), flush=True)


if __name__ == "__main__":
    main()
