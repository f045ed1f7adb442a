"""Kernels on the GPU that is there: which serve a workload, and whether a config is right."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from tunefa import arch as archs
from tunefa import check, languages
from tunefa import kernel as kernels
from tunefa.arch import Arch
from tunefa.errors import TunefaError
from tunefa.kernel import Kernel
from tunefa.trial import Config
from tunefa.workload import Workload


def seen_arch() -> Arch:
    """That of the GPU."""
    return archs.find(torch.cuda.get_device_name())[0]


@contextlib.contextmanager
def much_memory() -> Iterator[None]:
    """Skips the test where what is made inside does not fit: other tests' processes may have it."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        pytest.skip("needs 60 GiB of device memory that no other process has")


def served(workload: Workload) -> list[Kernel]:
    """The kernels that compute it on the GPU."""
    try:
        return kernels.serving(workload, seen_arch())
    except TunefaError:
        return []


def judge(kernel: Kernel, workload: Workload, config: Config, gate: check.Gate) -> None:
    """Raises AssertionError where a launch is not right twice."""
    made = check.tensors(workload, "cuda")
    launch = launched(kernel, workload, config, made)
    found = gate.verdict(lambda: launch(*made), workload, made)
    assert found.passed and found.repeatable, f"{found.reason}: {config}"


def launched(
    kernel: Kernel, workload: Workload, config: Config, made: Sequence[Any]
) -> languages.Launch:
    """A launch of the config on tensors of `check`, which has been made once."""
    language = languages.load(kernel.language)
    compiled = language.compile(kernel, workload, config, seen_arch())
    scores = (workload.head_dim**-0.5, check.softcap(workload))
    launch: languages.Launch = language.prepare(kernel, compiled, made, workload, config, *scores)
    launch(*made)
    return launch


def judge_random_configs(workload: Workload, count: int, seed: Any = 0) -> None:
    """So many of each kernel that serves the workload, on the shapes that a search checks them on.

    Raises AssertionError for the first that is not right.
    """
    gate = check.Gate("cuda")
    for kernel in served(workload):
        configs = list(kernel.space.feasible(workload, seen_arch()).configs)
        random.Random(seed).shuffle(configs)
        judged = 0
        while judged < count:
            config = configs.pop()
            try:
                judge(kernel, check.awkward(workload, config), config, gate)
            except languages.CompileError as error:
                assert lacks_registers(str(error)), f"{error}: {config}"
                continue
            judged += 1


def lacks_registers(reason: str) -> bool:
    """Whether a config does not compile because a thread has too few registers, which rules, being
    lower bounds, do not always foresee."""
    return reason.startswith("wgmma serialized") or "Insufficient registers" in reason
