"""What of a kernel's launch follows the batch and the lengths of a call.

The host side of a kernel may have a file beside it, `kernels/lengths/<name>.py`. With it a launch
that was prepared for one length is started for others in a few microseconds. Without it each length
is prepared by the kernel's `arguments`, as the first one is. The file defines

* `resized(workload, config, sms) -> Resized | None`: for dense calls of the workload's family,
  which differ in batch and lengths only; None where it does not apply.

It says again what the kernel's `arguments` says, so it is no part of the kernel's source hash. Each
launch is compared once with what `arguments` made, and tests compare thousands of workloads.
"""

from __future__ import annotations

import importlib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Protocol

from tunefa.compile.contract import LaunchSpec
from tunefa.spec.kernel import Kernel
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

_FOLDER = "tunefa.kernels.lengths"


class Resized(Protocol):
    """One config of a family of workloads."""

    def variant(self, rows: int, keys: int) -> Hashable:
        """Returns what the binary depends on: lengths with equal values have one binary."""

    def decides(self, batch: int, rows: int, keys: int) -> Hashable:
        """Returns what the tables depend on, and what `specialize` of the kernel changes."""

    def tables(self, spec: LaunchSpec, device: object) -> tuple[Tensor, ...]:
        """Returns the tables of a launch, tensors on the device, from `spec.table`."""

    def numbers(
        self,
        batch: int,
        rows: int,
        keys: int,
        sizes: Sequence[tuple[int, ...]],
        tables: Sequence[Tensor],
    ) -> tuple[int, tuple[int, ...]]:
        """Returns the CTAs of the grid, and the kernel's first numbers behind its TMA descriptors,
        up to the last that may differ. The address of a table is a number.

        `sizes` has the shape, then the strides of each of q, k, v and out, with heads first.
        """


def load(kernel: Kernel, workload: Workload, config: Config, sms: int) -> Resized | None:
    """Returns what follows the lengths in a config's launches; None if the kernel does not say."""
    kernel.module  # noqa: B018 - makes the folder of kernels known
    name = f"{_FOLDER}.{kernel.name}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name in (name, _FOLDER):
            return None
        raise
    found: Resized | None = module.resized(workload, config, sms)
    return found
