"""Kernels on the GPU that is there: which serve a workload, and whether a config is right."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tunefa.compile import languages
from tunefa.compile.contract import CompileError, Launch, LaunchSpec
from tunefa.errors import TunefaError
from tunefa.measure import check
from tunefa.measure.gate import Gate
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload


def seen_target() -> Target:
    """Returns the target of the GPU."""
    return Target.named(torch.cuda.get_device_name())


@contextlib.contextmanager
def much_memory() -> Iterator[None]:
    """Skips the test where what is made inside does not fit: other tests' processes may have it."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        pytest.skip("needs 60 GiB of device memory that no other process has")


def served(workload: Workload) -> list[Case]:
    """It with each of the kernels that compute it on the GPU."""
    target = seen_target()
    try:
        serving = kernels.serving(workload, target.arch)
    except TunefaError:
        return []
    return [Case(kernel, workload, target) for kernel in serving]


def judge(case: Case, config: Config, gate: Gate) -> None:
    """Raises AssertionError where a launch is not right twice."""
    probe = gate.probe(case.workload)
    launch = launched(case, config, probe.tensors)
    found = gate.compare(lambda: launch(*probe.tensors), probe)
    assert found.passed and found.repeatable, f"{found.reason}: {config}"


def launched(case: Case, config: Config, made: Sequence[Any]) -> Launch:
    """A launch of the config on tensors of `check`, which has been made once."""
    language, workload = languages.load(case.kernel.language), case.workload
    compiled = language.compile(case, config)
    spec = LaunchSpec(case, config, workload.head_dim**-0.5, check.softcap(workload))
    launch: Launch = language.prepare(spec, compiled, made)
    launch(*made)
    return launch


def judge_random_configs(workload: Workload, count: int, seed: Any = 0) -> None:
    """So many of each kernel that serves the workload, on the shapes that a search checks them on.

    Raises AssertionError for the first that is not right.
    """
    gate = Gate("cuda")
    for case in served(workload):
        configs = list(case.feasible().configs)
        random.Random(seed).shuffle(configs)
        judged = 0
        while judged < count:
            config = configs.pop()
            try:
                judge(replace(case, workload=check.ragged(workload, config)), config, gate)
            except CompileError as error:
                assert lacks_registers(str(error)), f"{error}: {config}"
                continue
            judged += 1


def lacks_registers(reason: str) -> bool:
    """Whether a config does not compile because a thread has too few registers, which rules, being
    lower bounds, do not always foresee."""
    return reason.startswith("wgmma serialized") or "Insufficient registers" in reason
