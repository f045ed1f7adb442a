"""The part of a kernel's launch that follows the batch and the lengths of a call.

The host side of a kernel may have a file beside it, `kernels/lengths/<name>.py`. With it a launch
that was prepared for one length is started for others in a few microseconds. Without it each length
is prepared by the kernel's `arguments`, as the first one is. The file defines

* `resized(workload, config, sms) -> Resized | None`: for dense calls of the workload's family,
  which differ in batch and lengths only; None where it does not apply;
* or, for gradients of such calls, `resized_gradients(workload, config, sms) -> ResizedGradients`;
* or, for attention over a cache, `resized_cache(workload, config, sms) -> ResizedCache`: for calls
  that differ in the batch, in the size of the cache and in strides only.

It says again what the kernel's `arguments` says, so it is no part of the kernel's source hash. Each
launch is compared once with what `arguments` made, and tests compare thousands of workloads.
"""

from __future__ import annotations

import importlib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

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
        tables: Sequence[tuple[int, int]],
    ) -> tuple[int, tuple[int, ...]]:
        """Returns the CTAs of the grid, and the kernel's first numbers behind its TMA descriptors,
        up to the last that may differ. The address of a table is a number.

        `sizes` has the shape, then the strides of each of q, k, v and out, with heads first;
        `tables` has the length and the address of each table.
        """


class CacheSizes(NamedTuple):
    """The differences between calls over a cache of one family."""

    batch: int
    keys: int
    """The keys that the cache of a sequence has room for."""
    table_row: int
    """Elements between the rows of the block table; 0 where the cache has no pages."""
    tensors: tuple[tuple[int, ...], ...]
    """The shape, then the strides of each of q, k, v and out, with heads first."""
    descale_steps: tuple[int, ...]
    """The strides of the factors of k, then of v; () where there are none."""


Shapes = tuple[tuple[int, ...], ...]


class ResizedCache(Protocol):
    """One config of a family of calls over a cache, which starts one kernel or two: one computes
    splits, and another one combines them unless the first one does."""

    forms: tuple[str, ...]
    """The formats of each kernel's numbers, see `ResizableLaunch`."""

    def __call__(self, asked: CacheSizes) -> tuple[Shapes, tuple[tuple[int, tuple[int, ...]], ...]]:
        """Returns the shapes of `scratch`, in fp32, and for each kernel the CTAs of its grid and
        its first numbers, up to the last that may differ."""


class GradientSizes(NamedTuple):
    """The differences between gradients of calls of one family."""

    batch: int
    rows: int
    """Queries of a sequence."""
    keys: int
    tensors: tuple[tuple[int, ...], ...]
    """The shape, then the strides of each of q, k, v, out, lse, dout, dlse, dq, dk and dv, with
    heads first. lse and dlse have three axes, and the others four."""
    scale: float
    """The factor of the scores."""


Scratch = tuple[tuple[tuple[int, ...], Any], ...]
"""Shapes and dtypes of the memory of a call."""


class ResizedGradients(Protocol):
    """One config of a family of gradients, which starts several kernels: those of `preprocess`, of
    `variant` and of `postprocess`, as far as the kernel has them."""

    forms: tuple[str, ...]
    """The formats of each kernel's numbers, see `ResizableLaunch`."""

    def variant(self, rows: int, keys: int) -> Hashable:
        """Returns what the binaries depend on: lengths with equal values have the same ones."""

    def decides(self, batch: int, rows: int, keys: int) -> Hashable:
        """Returns what the tables depend on; None where there are none."""

    def tables(self, batch: int, rows: int, keys: int, device: object) -> tuple[Tensor, ...]:
        """Returns the tables of the launches, tensors on the device, in their order."""

    def __call__(
        self, asked: GradientSizes, tables: Sequence[int]
    ) -> tuple[Scratch, tuple[tuple[int, tuple[float, ...]], ...]]:
        """Returns `scratch`, and for each kernel the CTAs of its grid and its first numbers, up to
        the last that may differ. `tables` are the addresses of tables."""


def load_gradients(
    kernel: Kernel, workload: Workload, config: Config, sms: int
) -> ResizedGradients | None:
    """Returns what follows the batch and the lengths; None if the kernel does not say."""
    resized = _said(kernel, "resized_gradients")
    found: ResizedGradients | None = resized and resized(workload, config, sms)
    return found


def load(kernel: Kernel, workload: Workload, config: Config, sms: int) -> Resized | None:
    """Returns what follows the lengths in a config's launches; None if the kernel does not say."""
    resized = _said(kernel, "resized")
    found: Resized | None = resized and resized(workload, config, sms)
    return found


def load_cache(kernel: Kernel, workload: Workload, config: Config, sms: int) -> ResizedCache | None:
    """Returns what follows the batch and the cache; None if the kernel does not say."""
    resized = _said(kernel, "resized_cache")
    found: ResizedCache | None = resized and resized(workload, config, sms)
    return found


def _said(kernel: Kernel, function: str) -> Any:
    """Returns a function of the kernel's file of lengths; None if there is none."""
    kernel.module  # noqa: B018 - makes the folder of kernels known
    name = f"{_FOLDER}.{kernel.name}"
    try:
        return getattr(importlib.import_module(name), function, None)
    except ModuleNotFoundError as error:
        if error.name in (name, _FOLDER):
            return None
        raise
