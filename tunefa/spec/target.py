"""Target (an arch and a device), and Case (a kernel and a workload on a target)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.arch import Arch, Device
from tunefa.spec.kernel import Kernel
from tunefa.spec.shared_memory import SharedMemory
from tunefa.spec.space import Feasible
from tunefa.spec.tiling import (
    BackwardTiling,
    DecodeTiling,
    MatmulTiling,
    NpuTiling,
    OneTiling,
    Tiling,
)
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

_MOST_MEMORY_BYTES = 2**40
"""More than any device has today."""


@dataclass(frozen=True)
class Target:
    """A chip: its arch, which the compiler needs, and its device, with SM count and clock."""

    arch: Arch
    device: Device
    is_known_product: bool = True
    """Whether the arch's file has this product. A product that the file lacks (such as an RTX 4090
    Laptop GPU) gets the figures of the arch's default device, but its own SM count."""

    @classmethod
    def named(cls, name: str) -> Target:
        """Returns the target that `name` identifies: an arch (with its default device) or a device.

        Raises TunefaError if `name` is neither.
        """
        return cls(*archs.find(name))

    @classmethod
    def seen(cls, name: str, compute_capability: tuple[int, int], sms: int) -> Target:
        """Returns the target for an NVIDIA device, from what its driver reports of it.

        Its device has the name that records of it have: the driver's, or the name in the arch's
        file that the driver's is an alias of. Raises TunefaError if no arch has its compute
        capability.
        """
        arch_name = "sm{}{}".format(*compute_capability)
        if arch_name not in archs.names("nvidia"):
            raise TunefaError(
                f"{name} is {arch_name}, which tunefa does not know: name one of "
                f"{', '.join(archs.names('nvidia'))} with --arch, or add "
                f"tunefa/spec/archs/{arch_name}.yaml"
            )
        arch = archs.load(arch_name)
        with contextlib.suppress(TunefaError):
            found = arch.device(name)
            known = name in (found.name, *found.aliases)
            return cls(arch, found if known else replace(found, name=name, sms=sms))
        device = replace(arch.device(), name=name, match=(name.lower(),), sms=sms)
        return cls(arch, device, is_known_product=False)

    def check_memory(self, workload: Workload) -> None:
        """Raises TunefaError if the device's memory cannot hold the workload's tensors.

        A device whose memory is not known is taken to have `_MOST_MEMORY_BYTES`.
        """
        known = self.device.memory_bytes if self.is_known_product else None
        available, needed = known or _MOST_MEMORY_BYTES, _tensor_bytes(workload)
        if needed > available:
            has = f"{self.device.name} has" if known else "no device has more than"
            raise TunefaError(
                f"{workload} needs {needed / 2**30:,.1f} GiB for {workload.tensor_names}, and "
                f"{has} {available / 2**30:,.1f} GiB: take {workload.smaller}, or name a device "
                "with more memory"
            )

    def __str__(self) -> str:
        """`NVIDIA H200 (sm90)`."""
        return f"{self.device.name} ({self.arch.name})"


def _tensor_bytes(workload: Workload) -> int:
    """Returns the bytes of the tensors, with the keys that a window hides."""
    if getattr(workload, "window_left", None) is None:  # a matrix product has no window
        return workload.io_bytes
    return replace(workload, window_left=None, window_right=None).io_bytes


@dataclass(frozen=True)
class Case:
    """One kernel with one workload and target. Configs are compiled and timed for a case."""

    kernel: Kernel
    workload: Workload
    target: Target

    @classmethod
    def from_names(cls, kernel: str, workload: str, arch: str) -> Case:
        """Returns the case that another process calls `names`. Its device is the arch's default.

        Raises TunefaError if a name is unknown.
        """
        return cls(kernels.load(kernel), Workload.parse(workload), Target.named(arch))

    @property
    def names(self) -> tuple[str, str, str]:
        """(kernel, workload, arch) as text, to pass to another process."""
        return self.kernel.name, str(self.workload), self.arch.name

    @property
    def arch(self) -> Arch:
        """The arch of the target."""
        return self.target.arch

    @property
    def device(self) -> Device:
        """The device of the target."""
        return self.target.device

    def why_not(self) -> str | None:
        """Returns why the kernel does not serve the workload on the target; None if it does."""
        return self.kernel.why_not(self.workload, self.arch)

    @property
    def priority(self) -> int:
        """The kernel's rank for the workload on the arch, see `Kernel.priority`."""
        return self.kernel.priority(self.workload, self.arch)

    def default(self) -> dict[str, Any]:
        """Returns the config to run without a search.

        Raises TunefaError if the space has no default that fits this case.
        """
        return self.kernel.default(self.workload, self.arch)

    def feasible(self) -> Feasible:
        """Returns every config that no rule refuses, and the number of refusals by rule."""
        return self.kernel.space.feasible(self.workload, self.arch)

    def refusal(self, config: Config) -> str | None:
        """Returns the name of the first rule that refuses the config; None if it is feasible."""
        return self.kernel.refusal(config, self.workload, self.arch)

    def refusals(self, config: Config) -> tuple[str, ...]:
        """Returns the names of all rules that refuse a config of the space."""
        return self.kernel.space.refusals(config, self.workload, self.arch)

    def estimate(self, config: Config) -> dict[str, float]:
        """Returns lower bounds of the resources, by their names in the space's file."""
        return self.kernel.space.estimate(config, self.workload, self.arch)

    def shared_memory(self, config: Config) -> SharedMemory | None:
        """The layout of shared memory; None where the compiler makes it."""
        return self.kernel.space.shared_memory(config, self.workload, self.arch)

    def tiling(self, config: Config) -> Tiling:
        """Returns the tiling of the config, for the cost model of GPUs."""
        return self.kernel.space.tiling(config, self.workload, self.arch)

    def backward_tiling(self, config: Config) -> BackwardTiling:
        """Returns the tiling of the config, for the cost model of attention's gradients."""
        return self.tiling_as_and_estimate(BackwardTiling, config)[0]

    def decode_tiling(self, config: Config) -> DecodeTiling:
        """Returns the tiling of the config, for the cost model of attention over a cache."""
        return self.tiling_as_and_estimate(DecodeTiling, config)[0]

    def matmul_tiling(self, config: Config) -> MatmulTiling:
        """Returns the tiling of the config, for the cost model of matrix products on GPUs."""
        return self.tiling_as_and_estimate(MatmulTiling, config)[0]

    def tiling_and_estimate(self, config: Config) -> tuple[Tiling, dict[str, float]]:
        """Returns `tiling` and `estimate`, for GPUs, in about half of the time."""
        return self.kernel.space.tiling_and_estimate(config, self.workload, self.arch)

    def tiling_as_and_estimate(
        self, kind: type[OneTiling], config: Config
    ) -> tuple[OneTiling, dict[str, float]]:
        """Returns the tiling of the config as `kind`, that of its op, and `estimate`."""
        return self.kernel.space.tiling_as_and_estimate(kind, config, self.workload, self.arch)

    def npu_tiling(self, config: Config) -> NpuTiling:
        """Returns the tiling of the config, for the latency model of NPUs."""
        return self.tiling_as_and_estimate(NpuTiling, config)[0]
