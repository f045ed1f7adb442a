"""Learned models that never saw the workload of a landscape, which is what a new workload meets."""

from __future__ import annotations

import functools
from pathlib import Path

from tunefa.costmodel import learning, training_rows
from tunefa.costmodel.learned import LearnedModel
from tunefa.costmodel.lesson import LEAST_WORKLOADS
from tunefa.costmodel.training_rows import Group, Row
from tunefa.store import landscape

LANDSCAPES = Path(__file__).resolve().parents[1] / "landscapes"


def model(path: Path) -> LearnedModel | None:
    """Returns a model of a landscape's kernel, learned from all recorded landscapes except those of
    its workload; None if too few are left."""
    found = landscape.load(path)
    rows = _rows().get((found.kernels[0], found.target.arch.name), [])
    others = [row for row in rows if row.case.workload != found.workload]
    if len({row.case.workload for row in others}) < LEAST_WORKLOADS:
        return None
    return learning.fit(others)


@functools.cache
def _rows() -> dict[Group, list[Row]]:
    """The rows of all recorded landscapes, by kernel and arch."""
    return training_rows.read(training_rows.files([LANDSCAPES])).groups()
