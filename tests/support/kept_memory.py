"""Memory for splits that calls on the CPU share, which holds anything before a call."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import cuda_on_cpu
from tests.support.cuda_on_cpu import OnCpu
from tunefa.spec.workload import Workload

GUARD, GUARDED = 64, 0.25
"""Elements behind each part of the memory, and what they are."""


class KeptMemory:
    """Stands in for `new_scratch`: calls that need memory of equal shapes get the same."""

    def __init__(self) -> None:
        self.kept: dict[Any, list[Tensor]] = {}
        self._guards: list[Tensor] = []

    def __call__(self, shapes: Any, like: Tensor) -> list[Tensor]:
        key = str(shapes)
        if key not in self.kept:
            self.kept[key] = [self._new(shape, dtype) for shape, dtype in shapes]
        return self.kept[key]

    def _new(self, shape: Any, dtype: torch.dtype) -> Tensor:
        size = math.prod(shape)
        made = torch.full((size + GUARD,), GUARDED, dtype=dtype)
        self._guards.append(made[size:])
        return made[:size].view(shape)

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> KeptMemory:
        """Puts one in the place of `new_scratch`, for the rest of a test."""
        made = cls()
        monkeypatch.setattr(cuda_on_cpu, "new_scratch", made)
        return made

    def begin(self, byte: int | None) -> None:
        """Fills it with a byte, or with None leaves what the call before has left but its rows."""
        self.forget_rows()
        if byte is not None:
            self.fill(byte)

    def fill(self, byte: int) -> None:
        for tensor in (each for tensors in self.kept.values() for each in tensors):
            tensor.view(torch.uint8).fill_(byte)

    def forget_rows(self) -> None:
        """Overwrites the rows of splits, so that a call must write them anew."""
        for rows, _ in self.kept.values():
            rows.fill_(torch.nan)

    def is_intact(self) -> bool:
        """Whether nothing was written behind the memory."""
        return all(bool((each == GUARDED).all()) for each in self._guards)


def outputs(
    run: OnCpu, tensors: tuple[Any, ...], workload: Workload, mode: int, sms: int
) -> list[Tensor]:
    """Returns the output and the logsumexp of a call."""
    for output in tensors[3:5]:
        output.fill_(torch.nan)
    run(tensors, workload, mode, sms)
    return [output.clone() for output in tensors[3:5]]


def without(statement: str, source: str, instead: str = ";") -> str:
    """Leaves out a statement of a kernel, or puts another one in its place."""
    assert statement in source
    return source.replace(statement, instead)
