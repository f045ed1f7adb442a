"""The software of this host: the versions that kernels are made with, and what they lack.

A library says so when PyTorch is loaded, which takes seconds. The process of the bench has loaded
it anyway, so a worker that measures asks there. A compiler's process says the rest meanwhile: it
loads Triton anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError
from dataclasses import dataclass
from typing import Any

from tunefa.compile import languages, provenance
from tunefa.compile.workers import ProcessLost, TaskRaised, Workers
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.sweep.processes import Started

_LIMIT_S = 60.0


@dataclass(frozen=True)
class Installed:
    """The software that is installed, by kernel."""

    versions: Mapping[str, Mapping[str, Any]]
    """The provenance of each."""
    lacking: Mapping[str, str]
    """The reasons that some kernels cannot be compiled here."""


def ask(started: Started, asked: Sequence[Kernel], arch: str) -> Callable[[], Installed]:
    """Asks the processes of a worker what is installed for kernels. Returns a function that waits
    for their answers; where one fails, this process finds it out."""
    libraries = [each.name for each in asked if each.is_library]
    others = [each.name for each in asked if not each.is_library]
    parts = [(started.compilers, others), (started.bench, libraries)]
    answers = [_asked(process, own, arch) for process, own in parts if own]

    def answer() -> Installed:
        found = [each() for each in answers]
        return Installed(
            {name: made for each in found for name, made in each.versions.items()},
            {name: why for each in found for name, why in each.lacking.items()},
        )

    return answer


def _asked(process: Workers, names: Sequence[str], arch: str) -> Callable[[], Installed]:
    """Asks a process. Returns a function that waits for its answer."""
    task = tuple(names), arch

    def answer() -> Installed:
        try:
            return asked.result()
        except (TimeoutError, ProcessLost, TaskRaised):
            return look_for_versions(*task)

    asked = process.submit(look_for_versions, task, _LIMIT_S)
    return answer


def look_for_versions(names: Sequence[str], arch: str) -> Installed:
    """Returns what is installed for kernels on an arch. All are names, so that another process can
    call it."""
    asked = [kernels.load(name) for name in names]
    made = {each.name: provenance.of(each) for each in asked}
    return Installed(made, languages.without_compiler(asked, archs.load(arch)))
