"""What is installed on this host: the versions that kernels are made with, and what they lack.

A library says so when PyTorch is loaded, which takes seconds. The process of the bench has loaded
it anyway, so a worker that measures asks there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError
from dataclasses import dataclass
from typing import Any

from tunefa.compile import languages, provenance
from tunefa.compile.workers import ProcessLost, TaskRaised, Workers
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels

_LIMIT_S = 60.0


@dataclass(frozen=True)
class Installed:
    """What is installed, by kernel."""

    versions: Mapping[str, Mapping[str, Any]]
    """The provenance of each."""
    lacking: Mapping[str, str]
    """Why some cannot be compiled here."""


def seen_by(bench: Workers, names: Sequence[str], arch: str) -> Installed:
    """Returns what is installed for kernels, as a process of the bench says; if that fails, as this
    one does."""
    try:
        return bench.submit(look_for_versions, (tuple(names), arch), _LIMIT_S).result()
    except (TimeoutError, ProcessLost, TaskRaised):
        return look_for_versions(names, arch)


def look_for_versions(names: Sequence[str], arch: str) -> Installed:
    """Returns what is installed for kernels on an arch. All are names, so that another process can
    call it."""
    asked = [kernels.load(name) for name in names]
    made = {each.name: provenance.of(each) for each in asked}
    return Installed(made, languages.without_compiler(asked, archs.load(arch)))
