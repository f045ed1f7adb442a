"""The estimates of a space before a search's first trial, remembered in one process.

The feasible configs of a large space and their expected times take a second, and follow from the
space, the workload, the target and what was learned. Tests of the search itself ask for the same
ones again and again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunefa.costmodel import learned
from tunefa.costmodel.before_compiling import expected_and_least_us
from tunefa.costmodel.estimate import estimates
from tunefa.search import candidates, parts
from tunefa.spec.arch import Arch
from tunefa.spec.space import Feasible, Space
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, identity
from tunefa.spec.workload import Workload


def remember(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets searches in this process use what an earlier test found for an equal question."""
    monkeypatch.setattr(Space, "feasible", _feasible)
    for module in (candidates, parts):
        monkeypatch.setattr(module, "estimates", functools.partial(_of_configs, estimates))
    least = functools.partial(_of_configs, expected_and_least_us)
    monkeypatch.setattr(candidates, "expected_and_least_us", least)


_ENUMERATE = Space.feasible
_KNOWN: dict[Hashable, Any] = {}


def _feasible(space: Space, workload: Workload, arch: Arch) -> Feasible:
    key = _content(space), str(workload), arch.name
    if key not in _KNOWN:
        _KNOWN[key] = _ENUMERATE(space, workload, arch)
    found: Feasible = _KNOWN[key]
    return Feasible(tuple(map(dict, found.configs)), dict(found.refused))


def _of_configs(
    compute: Callable[..., list[Any]], case: Case, configs: Sequence[Config], *known: Sequence[Any]
) -> list[Any]:
    model = learned.load(case.kernel.name, case.arch.name)
    asked = str(case.workload), case.target.device.name, model and model.id
    given = (tuple(map(identity, configs)), *map(tuple, known))
    key = (compute, _content(case.kernel.space), *asked, *given)
    if key not in _KNOWN:
        _KNOWN[key] = compute(case, configs, *known)
    return list(_KNOWN[key])


def _content(space: Space) -> str:
    """All of a space but the kernel's name: copies of a kernel share it."""
    return repr(replace(space, kernel="", path=Path()))
