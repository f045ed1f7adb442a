"""Hundreds of random gradients by every kernel that serves them, on the device."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from tests.support.gpu_kernels import seen_target
from tunefa.compile import languages
from tunefa.compile import pool as compile_pool
from tunefa.compile.contract import CompileError, unordered, unread
from tunefa.measure import launches
from tunefa.measure.gate import Gate
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu
CASES = 300
"""Random workloads; each kernel computes those that it serves."""
HEAD_DIMS = (64, 128, 256, 40, 80, 96, 192)
"""Each is another binary, which takes seconds to compile."""


def workloads() -> Iterator[Workload]:
    """Always the same ones: all masks, head dimensions, groups and lengths that a call may have."""
    chance = random.Random(0)
    for _ in range(CASES):
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


def test_workloads_have_something_of_everything() -> None:
    every = list(workloads())
    assert len(every) == CASES
    for name in ("varlen", "deterministic", "softcap", "causal"):
        assert {getattr(each, name) for each in every} == {True, False}


OF_GRADIENTS = [name for name in kernels.names() if kernels.load(name).op == "bwd"]


def compile_all(cases: Sequence[Case]) -> None:
    """Compiles the defaults in all cores, so that what follows finds them in caches."""
    tasks = [(case.names, case.default()) for case in cases]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        list(pool.map(compile_pool._compile, *zip(*tasks, strict=True)))


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_random_problems_are_right(name: str) -> None:
    """The gate launches twice, and compares every row with the reference."""
    kernel, target, gate = kernels.load(name), seen_target(), Gate("cuda")
    if why := languages.without_compiler([kernel], target.arch).get(name):
        pytest.skip(why)
    cases = [Case(kernel, workload, target) for workload in workloads()]
    served = [case for case in cases if case.why_not() is None]
    assert served, "no random workload is one that it serves"
    if not kernel.is_library:
        compile_all(served)
    wrong, refused = [], []
    for case in served:
        probe = gate.probe(case.workload, unread(kernel))
        aligned = bool(kernel.module.is_aligned(probe.tensors))
        others: Any = {} if aligned else kernel.unaligned
        if isinstance(others, str):
            continue
        config = {**case.default(), **others}
        try:
            launch = launches.launch(case, config, probe.tensors)
        except CompileError as error:
            refused.append(f"{case.workload}: {error}")
            continue
        found = gate.compare(launch, probe, unordered(case, config))
        if not (found.passed and found.repeatable):
            wrong.append(found.reason)
    assert not wrong, f"{len(wrong)} of {len(served)} are wrong, first {wrong[:3]}"
    assert not refused, f"{len(refused)} of {len(served)} do not compile, first {refused[:3]}"
