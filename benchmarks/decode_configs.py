"""Configs that differ from a kernel's default, which benchmarks race on request: of kernels over a
cache (`benchmarks.decode`, `benchmarks.batch_invariance`), or of any other."""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch

from benchmarks import compiled_ahead
from benchmarks.graphs import Call
from tunefa.compile import languages
from tunefa.measure import launches
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

KERNEL = "attention_decode_cuda_sm90"
"""The kernel of configs that name none."""


class Changed(NamedTuple):
    """The default config of a kernel with some parameters changed."""

    kernel: str
    changes: Config

    def __str__(self) -> str:
        """The text that `parsed` reads."""
        parts = ",".join(f"{key}={value}" for key, value in self.changes.items())
        return parts if self.kernel == KERNEL and parts else f"{self.kernel}:{parts}"

    def at(self, workload: Workload, target: Target) -> tuple[Case, Config]:
        """The kernel's case and the config there. Raises ValueError where a rule refuses it."""
        case = Case(kernels.load(self.kernel), workload, target)
        config = {**case.default(), **self.changes}
        if why := case.refusal(config):
            raise ValueError(f"{self}: {why}")
        return case, config

    def call(self, made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
        """The config, launched on caches without tunefa's runtime."""
        case, config = self.at(workload, Target.named(torch.cuda.get_device_name()))
        launch = launches.prepared(case, config, made[0])
        return lambda number: launch(*made[number])


def parsed(text: str) -> Changed:
    """The config that is meant by `TREE_DEPTH=3,SPLIT_COST=16`, or with another kernel than KERNEL
    by `attention_decode_triton:MAX_SPLITS=16`. Raises ArgumentTypeError for others."""
    kernel, colon, parts = text.rpartition(":")
    kernel = kernel if colon else KERNEL
    if kernel not in kernels.names():
        raise argparse.ArgumentTypeError(f"there is no kernel {kernel!r}")
    known = {each.name: each.values for each in kernels.load(kernel).space.parameters}
    changes = {}
    for part in parts.split(",") if parts else ():
        key, _, value = part.partition("=")
        if key not in known:
            raise argparse.ArgumentTypeError(f"{kernel} has no {key!r}, but {', '.join(known)}")
        if not value.isdecimal() or int(value) not in known[key]:
            raise argparse.ArgumentTypeError(f"{key} must be one of {known[key]}, not {value!r}")
        changes[key] = int(value)
    return Changed(kernel, changes)


def compile_all(configs: Sequence[Changed], workloads: Sequence[Workload], target: Target) -> None:
    """Compiles configs for workloads in all cores, so that launches find them in caches. Those that
    a rule refuses are left out."""
    tasks: dict[Hashable, compiled_ahead.Task] = {}
    for each, workload in itertools.product(configs, workloads):
        with contextlib.suppress(ValueError):
            case, config = each.at(workload, target)
            language = languages.load(case.kernel.language)
            key = case.kernel.name, language.binary_key(case, config, workload.is_aligned)
            tasks.setdefault(key, (case.names, config))
    compiled_ahead.compile_all(tasks.values())
