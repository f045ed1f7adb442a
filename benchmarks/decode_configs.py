"""Configs that differ from a kernel's default, which benchmarks race on request: of the CUDA kernel
over a cache (`benchmarks.decode`), or of another one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.graphs import Call
from tunefa.measure import launches
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

KERNEL = "attention_decode_cuda_sm90"


def parsed(text: str, kernel: str = KERNEL) -> Config:
    """The parameters in `TREE_DEPTH=3,SPLIT_COST=16`. Raises ArgumentTypeError for others."""
    known = {each.name: each.values for each in kernels.load(kernel).space.parameters}
    changes = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key not in known:
            raise argparse.ArgumentTypeError(f"{kernel} has no {key!r}, but {', '.join(known)}")
        if not value.isdecimal() or int(value) not in known[key]:
            raise argparse.ArgumentTypeError(f"{key} must be one of {known[key]}, not {value!r}")
        changes[key] = int(value)
    return changes


def name(changes: Config) -> str:
    """The text that `parsed` reads."""
    return ",".join(f"{key}={value}" for key, value in changes.items())


def changed(
    changes: Config, workload: Workload, target: Target, kernel: str = KERNEL
) -> tuple[Case, Config]:
    """The kernel's default with some parameters changed. Raises ValueError where a rule refuses
    it."""
    case = Case(kernels.load(kernel), workload, target)
    config = {**case.default(), **changes}
    if why := case.refusal(config):
        raise ValueError(f"{name(config)}: {why}")
    return case, config


def call(changes: Config, made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """The config `changed`, launched without tunefa's runtime."""
    case, config = changed(changes, workload, Target.named(torch.cuda.get_device_name()))
    launch = launches.prepared(case, config, made[0])
    return lambda number: launch(*made[number])
