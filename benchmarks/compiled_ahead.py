"""Compiles configs in all cores, so that launches find their binaries in caches."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tunefa.compile import pool as compile_pool
from tunefa.spec.trial import Config

Task = tuple[tuple[str, str, str], Config]
"""The names of a case (`Case.names`), and a config of it."""


def compile_all(tasks: Iterable[Task]) -> list[str]:
    """Compiles all; returns why those failed that did."""
    asked = list(tasks)
    names, configs = [each for each, _ in asked], [config for _, config in asked]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        reasons = [reason for *_, reason in pool.map(compile_pool._compile, names, configs)]
    pairs = zip(names, reasons, strict=True)
    return [f"{kernel} {workload}: {why}" for (kernel, workload, _), why in pairs if why]
