"""Configs of the CUDA kernels over a cache, which `benchmarks.decode` races on request."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.graphs import Call
from tunefa.measure import launches
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload


def kernel_of(workload: Workload) -> Kernel:
    """The CUDA kernel of a workload, whose configs are raced."""
    of_its_kind = "decode_mla" if workload.mla else "decode"
    return kernels.load(f"attention_{of_its_kind}_cuda_sm90")


def parsed(text: str) -> Config:
    """The parameters in `TREE_DEPTH=3,SPLIT_COST=16`. Raises ArgumentTypeError for others."""
    changes = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if not value.isdecimal():
            raise argparse.ArgumentTypeError(f"{key} must be a whole number, not {value!r}")
        changes[key] = int(value)
    return changes


def name(changes: Config) -> str:
    """The text that `parsed` reads."""
    return ",".join(f"{key}={value}" for key, value in changes.items())


def changed(changes: Config, workload: Workload, target: Target) -> tuple[Case, Config]:
    """The kernel's default with some parameters changed. Raises ValueError for a parameter or a
    value that the kernel does not have, and where a rule refuses the config."""
    case = Case(kernel_of(workload), workload, target)
    known = {each.name: each.values for each in case.kernel.space.parameters}
    for key, value in changes.items():
        if key not in known:
            raise ValueError(f"{case.kernel.name} has no {key!r}, but {', '.join(known)}")
        if value not in known[key]:
            raise ValueError(f"{key} must be one of {known[key]}, not {value!r}")
    config = {**case.default(), **changes}
    if why := case.refusal(config):
        raise ValueError(f"{name(config)}: {why}")
    return case, config


def call(changes: Config, made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """The config `changed`, launched without tunefa's runtime."""
    case, config = changed(changes, workload, Target.named(torch.cuda.get_device_name()))
    launch = launches.prepared(case, config, made[0])
    return lambda number: launch(*made[number])
