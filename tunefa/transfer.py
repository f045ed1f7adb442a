"""The config for a workload that nobody measured, from those that were measured near it.

What is best for the nearest workload need not be: one tile more may begin another wave of
programs, and a small problem wants tiles that fill the device. The model of time knows such things,
and not how well a kernel does; a record knows that. So every config at hand is given the model's
time, times what the kernel's nearest record took over what the model says of that one. In the end
the kernel may say what should be otherwise for so many tiles on so many SMs (`fitted`, see
tunefa/languages/cuda.py).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tunefa import arch as archs
from tunefa import lookup, model
from tunefa.arch import Arch, Device, NpuArch, gpu
from tunefa.ascend import time_law
from tunefa.errors import TunefaError
from tunefa.kernel import Kernel
from tunefa.lookup import Choice
from tunefa.record import Record
from tunefa.store import Store, current
from tunefa.trial import Config
from tunefa.workload import Workload

GAIN = 0.05
"""By how much another config must be expected to be faster than the nearest record's: where it
matters, in waves and on small problems, it is 10 to 40 %, and the model errs by some percent."""


def expected_us(
    kernel: Kernel, config: Config, workload: Workload, arch: Arch, device: Device
) -> float:
    """The model's time before any compiler has seen the config; infinite if it cannot run."""
    if isinstance(arch, NpuArch):
        return time_law.time_us(workload, device, kernel.space.npu_tiling(config, workload, arch))
    arch = gpu(arch)
    estimate = kernel.space.estimate(config, workload, arch)
    smem_bytes, registers = int(estimate.get("smem_bytes", 0)), int(estimate.get("registers", 0))
    tiling = kernel.space.tiling(config, workload, arch)
    resources = model.expected_resources(arch, tiling, smem_bytes, registers)
    return model.predict(workload, arch, device, tiling, resources).time_us


def choose(
    store: Store,
    workload: Workload,
    arch: Arch,
    device_name: str | None,
    kernels: Sequence[Kernel],
) -> Choice:
    """What `lookup` finds; where that is the nearest record's, the config expected to be fastest.

    One of the records up to `FAR_OCTAVES` away, or the default of a kernel that was measured. What
    was not measured for this very workload is fitted to it.

    Raises `TunefaError` when no kernel serves the workload.
    """
    found = lookup.lookup(store, workload, arch, device_name, kernels)
    if found.how not in ("nearest", "default"):
        return found
    try:
        device = archs.find(str(device_name))[1]
    except TunefaError:  # a product of which the model knows no peaks
        return found
    if found.record is not None:
        near = _Near(store, workload, arch, device, str(device_name), kernels)
        found = _fastest(found, found.record, near)
    return _fitted(found, workload, arch, device, kernels)


def _fastest(nearest: Choice, record: Record, near: _Near) -> Choice:
    """The choice of a record, or the config that is expected to be faster by some percent."""
    expected = list(near.expected())
    own = nearest.kernel, dict(nearest.config)
    # 0 where a newer record of the nearest's question has a config that cannot run here.
    own_us = next((us for name, config, us in expected if (name, dict(config)) == own), 0.0)
    name, config, us = min(expected, key=lambda each: each[2], default=("", {}, math.inf))
    if not us <= (1 - GAIN) * own_us < math.inf:
        return nearest
    return Choice(name, dict(config), "nearest", record, nearest.octaves, 1 - us / own_us)


def _fitted(
    choice: Choice, workload: Workload, arch: Arch, device: Device, kernels: Sequence[Kernel]
) -> Choice:
    """The choice with what its kernel's host side, if it has a `fitted`, sets for the workload."""
    kernel = next(each for each in kernels if each.name == choice.kernel)
    fitted = getattr(kernel.module, "fitted", None)
    changes = fitted(workload, choice.config, device.sms) if fitted else {}
    config = {**choice.config, **changes}
    if not changes or kernel.refusal(config, workload, arch) is not None:
        return choice
    return replace(choice, config=config, fitted=changes)


@dataclass(frozen=True)
class _Near:
    """What is known near a workload."""

    store: Store
    workload: Workload
    arch: Arch
    device: Device
    device_name: str
    kernels: Sequence[Kernel]

    def expected(self) -> Iterator[tuple[str, Config, float]]:
        """(kernel, config, expected time) of all that may run."""
        serving = {k.name: k for k in self.kernels if k.why_not(self.workload, self.arch) is None}
        scales: dict[str, float] = {}
        for record in self._measured():
            kernel = serving.get(record.kernel)
            if kernel is None:
                continue
            if record.kernel not in scales:
                scales[record.kernel] = self._scale(kernel, record)
                with contextlib.suppress(TunefaError):  # it has no default for this
                    default = kernel.default(self.workload, self.arch)
                    yield kernel.name, default, scales[kernel.name] * self._us(kernel, default)
            far = lookup.distance(record.workload, self.workload) > lookup.FAR_OCTAVES
            if not far and kernel.refusal(record.config, self.workload, self.arch) is None:
                us = scales[kernel.name] * self._us(kernel, record.config)
                yield kernel.name, dict(record.config), us

    def _measured(self) -> list[Record]:
        """Records of this device and the workload's family, the nearest first."""
        name = self.device_name
        ranked = lookup.candidates(self.store.records(), self.workload, self.arch, name)
        return current([record for record in ranked if record.device == name])

    def _scale(self, kernel: Kernel, record: Record) -> float:
        """What a record took over what the model says of it; infinite where that is nothing."""
        us = self._us(kernel, record.config, record.workload)
        return record.median_us / us if 0.0 < us < math.inf else math.inf

    def _us(self, kernel: Kernel, config: Config, workload: Workload | None = None) -> float:
        return expected_us(kernel, config, workload or self.workload, self.arch, self.device)
