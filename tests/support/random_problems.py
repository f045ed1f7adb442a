"""Checks a kernel on random workloads, on the GPU that is there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from benchmarks import compiled_ahead
from tests.support.gpu_kernels import seen_target
from tunefa.compile import languages
from tunefa.compile.contract import CompileError, unordered, unread
from tunefa.measure import launches
from tunefa.measure.gate import Gate
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload


def compile_all(cases: Sequence[Case]) -> None:
    """Compiles the defaults in all cores, so that what follows finds them in caches."""
    compiled_ahead.compile_all((case.names, case.default()) for case in cases)


def check_random(kernel: Kernel, workloads: Iterable[Workload], refusal: str | None = None) -> None:
    """Runs the kernel's default for each workload that it serves. The gate launches twice, and
    compares every row with the reference. Raises AssertionError for wrong ones, and for those that
    are refused with a message in which the pattern `refusal` is not found."""
    target, gate = seen_target(), Gate("cuda")
    if why := languages.without_compiler([kernel], target.arch).get(kernel.name):
        pytest.skip(why)
    cases = [Case(kernel, workload, target) for workload in workloads]
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
            if refusal is None or not re.search(refusal, str(error)):
                refused.append(f"{case.workload}: {error}")
            continue
        found = gate.compare(launch, probe, unordered(case, config))
        if not (found.passed and found.repeatable):
            wrong.append(found.reason)
    assert not wrong, f"{len(wrong)} of {len(served)} are wrong, first {wrong[:3]}"
    assert not refused, f"{len(refused)} of {len(served)} do not compile, first {refused[:3]}"
