"""A runtime on the CPU that leaves unwritten what tunefa's kernels do not write on a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tunefa.runtime import process
from tunefa.runtime.call import Options


@contextmanager
def nan_behind() -> Iterator[list[Options]]:
    """Lets the calls inside of the `with` have NaN in the rows and keys behind the last packed
    sequence: in out and lse, and in the gradients of q, k and v. Gives the calls' options."""
    calls: list[Options] = []
    before = process.run_by(_Runtime(process.current(), calls))  # type: ignore[arg-type]
    try:
        yield calls
    finally:
        process.run_by(before)


@dataclass(frozen=True)
class _Runtime:
    inner: Any
    calls: list[Options]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def ready(self, tensors: Any, options: Any, scale: Any) -> Any:
        self.calls.append(options)
        plan, scale = self.inner.ready(tensors, options, scale)
        return _Plan(plan), scale

    def gradients(self, tensors: Any, options: Any, scale: Any, given: Any) -> Any:
        grads = self.inner.gradients(tensors, options, scale, given)
        if tensors.cu_seqlens is None:
            return grads
        starts_q, starts_k = tensors.cu_seqlens
        return tuple(map(_unwritten, grads, (starts_q, starts_k, starts_k)))


@dataclass(frozen=True)
class _Plan:
    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def run(self, tensors: Any, scale: Any) -> Any:
        out, lse = self.inner.run(tensors, scale)
        if tensors.cu_seqlens is None:
            return out, lse
        starts = tensors.cu_seqlens[0]
        return _unwritten(out, starts), _unwritten(lse.t(), starts).t()

    def output(self, tensors: Any, scale: Any) -> Any:
        return self.run(tensors, scale)[0]


def _unwritten(x: Tensor, starts: Tensor) -> Tensor:
    x[int(starts[-1]) :] = torch.nan
    return x
