"""Hundreds of random problems through random configs of every kernel, on the device."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import pytest

from tests.support.gpu_kernels import lacks_registers, seen_target
from tunefa.compile import languages
from tunefa.compile import pool as compile_pool
from tunefa.compile.contract import LaunchSpec
from tunefa.measure.gate import Gate
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu

BINARIES = 80
"""By kernel; a binary takes seconds to compile."""
SHAPES = 4
"""Random lengths, batches and heads that go through each."""


OF_FORWARD = [
    name
    for name, kernel in ((name, kernels.load(name)) for name in kernels.names())
    if kernel.op == "fwd" and kernel.space.vendor == "nvidia" and not kernel.is_library
]


@dataclass(frozen=True)
class Run:
    """A problem and how it is computed."""

    case: Case
    config: Config

    def __str__(self) -> str:
        return f"{self.case.kernel.name} {self.case.workload} {dict(self.config)}"


def _kind(chance: random.Random) -> Workload:
    """Head sizes, dtype and mask: what is compiled for."""
    head_dim = 8 * chance.randint(2, 32)
    head_dim_v = head_dim if chance.random() < 0.7 else 8 * chance.randint(2, 32)
    return Workload(
        op="fwd", batch=1, heads=4, heads_kv=2, seqlen_q=4096, seqlen_k=4096, head_dim=head_dim,
        head_dim_v=head_dim_v, dtype=chance.choice(["bf16", "fp16"]), causal=chance.random() < 0.6,
    )  # fmt: skip


def _shaped(kind: Workload, chance: random.Random) -> Workload:
    """Lengths from 1, also such that whole tiles see no key; groups of up to 8 query heads."""
    heads_kv = chance.randint(1, 4)
    lengths = [chance.randint(1, chance.choice([40, 300, 1500])) for _ in range(2)]
    if chance.random() < 0.4:
        lengths[1] = lengths[0]
    return replace(
        kind, batch=chance.randint(1, 3), heads_kv=heads_kv,
        heads=heads_kv * chance.choice([1, 1, 2, 3, 8]), seqlen_q=lengths[0], seqlen_k=lengths[1],
    )  # fmt: skip


def runs(kernel: Kernel, target: Target) -> Iterator[Run]:
    """Always the same. Configs are feasible for long sequences, so that all sizes of tile occur."""
    chance = random.Random(0)
    made = 0
    while made < BINARIES:
        case = Case(kernel, _kind(chance), target)
        if case.why_not() is not None:
            continue
        config = chance.choice(case.feasible().configs)
        made += 1
        for _ in range(SHAPES):
            yield Run(replace(case, workload=_shaped(case.workload, chance)), config)


@pytest.mark.parametrize("name", OF_FORWARD)
def test_random_problems_are_right_and_repeatable(name: str) -> None:
    kernel = kernels.load(name)
    everything = list(runs(kernel, seen_target()))
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        tasks = [(run.case.names, dict(run.config)) for run in everything]
        # The shapes of one binary go to one process, so that it is compiled once.
        made = list(pool.map(compile_pool._compile, *zip(*tasks, strict=True), chunksize=SHAPES))
    reasons = dict(zip(map(str, everything), (reason for *_, reason in made), strict=True))
    failed = [f"{why}: {run}" for run, why in reasons.items() if why and not lacks_registers(why)]
    assert not failed, f"{len(failed)} do not compile, first {failed[0]}"
    everything = [run for run in everything if not reasons[str(run)]]
    assert len(everything) > 3 / 4 * BINARIES * SHAPES
    language, gate = languages.load(kernel.language), Gate("cuda")
    wrong = []
    for run in everything:
        workload, probe = run.case.workload, gate.probe(run.case.workload)
        tensors = probe.tensors
        aligned = kernel.module.is_aligned(tensors)
        if not aligned and isinstance(kernel.unaligned, str):
            continue
        compiled = language.compile(run.case, run.config, aligned)
        spec = LaunchSpec(run.case, run.config, workload.head_dim**-0.5)
        launch = language.prepare(spec, compiled, tensors)
        verdict = gate.compare(lambda: launch(*tensors), probe)  # noqa: B023
        if not (verdict.passed and verdict.repeatable):
            wrong.append(f"{verdict.reason}: {run}")
    assert not wrong, f"{len(wrong)} of {len(everything)} are wrong, first {wrong[0]}"
