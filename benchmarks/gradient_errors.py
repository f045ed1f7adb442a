"""Compares the errors of gradients with those of FlashAttention-2, on the GPU of this machine.

    python -m benchmarks.gradient_errors [--cases 300] [--kernel NAME] [--containing fp16]
                                         [--out FILE]

Each of tunefa's own backward kernels computes those random workloads that it serves, with its
default config. FlashAttention-2 of PyTorch computes the same tensors; where it does not serve a
workload, PyTorch's operators do in the workload's dtype. Errors are relative to gradients in fp64:
over all rows, and in the worst row. Rows whose gradient is smaller than what rounding makes of it
are left out. A figure is tunefa's error over the other one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import compiled_ahead
from tunefa.compile import languages
from tunefa.measure import launches, ops, reference
from tunefa.measure.comparison import LEAST_NORM
from tunefa.measure.expected_gradients import ExpectedGradients
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

CASES = 300
HEAD_DIMS = (64, 128, 256, 40, 80, 96, 192)
"""Each is another binary, which takes seconds to compile."""
LIMIT = 1.5
"""The largest ratio of tunefa's error to the other one."""
PEER = "attention_bwd_fa2"


def workloads() -> Iterator[Workload]:
    """Always the same ones: all masks, head dimensions, groups and lengths that a call may have."""
    chance = random.Random(0)
    while True:
        head_dim, heads_kv = chance.choice(HEAD_DIMS), chance.randint(1, 3)
        lengths = [chance.randint(1, chance.choice([40, 300, 700])) for _ in range(2)]
        if chance.random() < 0.5:
            lengths[1] = lengths[0]
        causal = chance.random() < 0.6
        yield Workload(
            op="bwd",
            batch=chance.randint(1, 3),
            heads=heads_kv * chance.choice([1, 1, 2, 4]),
            heads_kv=heads_kv,
            seqlen_q=lengths[0],
            seqlen_k=lengths[1],
            head_dim=head_dim,
            head_dim_v=head_dim if chance.random() < 0.9 else 64,
            dtype=chance.choice(["bf16", "bf16", "fp16"]),
            causal=causal,
            window_left=chance.choice([None, None, None, 50]),
            window_right=None if causal else chance.choice([None, None, 20]),
            softcap=chance.random() < 0.1,
            varlen=chance.random() < 0.2,
            deterministic=chance.random() < 0.2,
        )


OWN = [
    each.name
    for each in map(kernels.load, kernels.names())
    if each.op == "bwd" and not each.is_library
]


@dataclass(frozen=True)
class Ratio:
    """The errors of one output of one kernel, over those of `peer`."""

    kernel: str
    peer: str
    workload: str
    output: str
    overall: float
    worst_row: float


def served(names: Sequence[str], cases: int, target: Target) -> list[Case]:
    """Returns each of the first `cases` dense workloads with each of the kernels that serve it."""
    dense = (each for each in workloads() if not each.varlen)
    found = []
    for workload in itertools.islice(dense, cases):
        for name in names:
            case = Case(kernels.load(name), workload, target)
            if case.why_not() is None:
                found.append(case)
    return found


def errors(expected: ExpectedGradients, made: Sequence[Tensor]) -> list[tuple[float, float]]:
    """Returns the errors of dq, dk and dv: over all rows, and in the worst one."""
    found = []
    for number, output in enumerate(made):
        norm = expected.norms[number]
        counted = norm >= expected.limits[number]
        off = (output.double() - expected.grads[number]).norm(dim=-1).where(counted, 0.0)
        overall = off.norm() / norm.where(counted, 0.0).norm().clamp_min(LEAST_NORM)
        found.append((float(overall), float((off / norm).amax())))
    return found


def launched(case: Case, tensors: Sequence[Any]) -> list[Tensor]:
    """Returns dq, dk and dv of the kernel's default."""
    kernel = case.kernel
    aligned = kernel.module.is_aligned(tensors)
    others: Any = {} if aligned else kernel.unaligned
    outputs = ops.of(case.workload).OUTPUTS
    for output in tensors[outputs]:
        output.fill_(float("nan"))
    launches.launch(case, {**case.default(), **others}, tensors)()
    return [output.clone() for output in tensors[outputs]]


def by_operators(workload: Workload, tensors: Sequence[Any]) -> list[Tensor]:
    """Returns dq, dk and dv of PyTorch's operators in the workload's dtype."""
    leaves = [each.detach().requires_grad_() for each in tensors[:3]]
    asked = ops.of(workload).attention_inputs(workload, tensors)
    asked = replace(asked, q=leaves[0], k=leaves[1], v=leaves[2])
    with torch.enable_grad():
        out, _ = reference.attention(asked, dtype=leaves[0].dtype)
        return list(torch.autograd.grad(out, leaves, tensors[5]))


def ratios(case: Case, seed: int) -> list[Ratio]:
    """Returns the ratios of a kernel's three outputs."""
    workload = case.workload
    op = ops.of(workload)
    tensors = op.tensors(workload, "cuda", seed)
    expected = op.expected(workload, "normal", tensors, torch.float64)
    other = Case(kernels.load(PEER), replace(workload, deterministic=False), case.target)
    serves = other.why_not() is None
    theirs = launched(other, tensors) if serves else by_operators(workload, tensors)
    own, others = errors(expected, launched(case, tensors)), errors(expected, theirs)
    peer = PEER if serves else "PyTorch's operators"
    return [
        Ratio(case.kernel.name, peer, str(workload), name, _over(mine, its), _over(row, its_row))
        for name, (mine, row), (its, its_row) in zip(op.NAMES, own, others, strict=True)
    ]


def _over(own: float, other: float) -> float:
    """A ratio of errors; 1 where both are exact, as where a gradient is 0."""
    return own / other if other else 1.0 if not own else float("inf")


def table(found: Sequence[Ratio]) -> str:
    """A row for each kernel and output."""
    lines = [
        "| kernel | output | workloads | all rows: median, largest | worst row: median, largest"
        f" | beyond {LIMIT} |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for kernel, output in dict.fromkeys((each.kernel, each.output) for each in found):
        own = [each for each in found if (each.kernel, each.output) == (kernel, output)]
        overall, rows = [each.overall for each in own], [each.worst_row for each in own]
        beyond = sum(max(each.overall, each.worst_row) > LIMIT for each in own)
        lines.append(
            f"| {kernel} | {output} | {len(own)} | {statistics.median(overall):.2f}, "
            f"{max(overall):.2f} | {statistics.median(rows):.2f}, {max(rows):.2f} | {beyond} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--kernel", action="append", choices=OWN, help="only this; may be repeated")
    parser.add_argument("--containing", default="", help="only workloads with this in their text")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    target = Target.named(torch.cuda.get_device_name())
    asked = served(given.kernel or OWN, given.cases, target)
    asked = [case for case in asked if given.containing in str(case.workload)]
    compiled_ahead.compile_all((case.names, case.default()) for case in asked)
    for name in {case.kernel.language for case in asked}:
        languages.load(name)
    found = []
    for seed, case in enumerate(asked):
        found += ratios(case, seed)
    print(table(found))
    if given.out:
        rows = [asdict(each) for each in found]
        given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
