"""The tensors, the inputs and the reference with which each op is measured and checked.

An op is a module in this folder, found by its file name, which is `Workload.op`. It has

* `OUTPUTS`: the slice of its tensors that a kernel writes; those before it are read; `NAMES`, their
  names;
* `tensors(workload, device, seed=None)`: fresh normal inputs, and outputs full of NaN, of the
  shapes that a kernel's `arguments` takes;
* `ragged(workload, config)`: a small workload of the same kind, whose sizes no tile divides;
* `launch_spec(case, config)`: what the host side of a kernel needs beside the tensors;
* `kinds_of_finalists(workload)`: the kinds of inputs on which finalists are checked;
* `inputs(workload, kind, device)`: (tensors, memories) with normal or hostile inputs; the memories
  of inputs and outputs surround them with what no kernel may read;
* `expected(workload, kind, tensors, dtype)`: the reference's outputs and how far each row may be
  from them, see `Reference`;
* `limit(workload, kind, tensors, expected)`: the largest relative error over all rows that passes
  on a device.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from torch import Tensor

    from tunefa.measure.comparison import Comparison


class Reference(Protocol):
    """The outputs of a reference, with which those of kernels are compared."""

    @property
    def bytes(self) -> int:
        """Bytes of device memory that it holds."""

    def compare(self, *outputs: Tensor) -> Comparison:
        """Compares a kernel's outputs with it."""

    def agree(self, name: str, first: Tensor, second: Tensor) -> bool:
        """Returns whether two launches wrote the same sums into the output of that name, but for
        the order of their terms."""


def names() -> list[str]:
    """Returns the names of all ops: the modules in this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


@functools.cache
def load(name: str) -> ModuleType:
    """Returns the module of an op."""
    return importlib.import_module(f"{__name__}.{name}")


def of(workload: Workload) -> Any:
    """Returns the module of a workload's op."""
    return load(workload.op)
