"""What a config is chosen for: a chip, and with a kernel and a workload, a case."""

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
from tunefa.spec.tiling import NpuTiling, Tiling
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload


@dataclass(frozen=True)
class Target:
    """A chip: its family, which compilers know, and the product, whose SMs and clocks count."""

    arch: Arch
    device: Device
    is_known_product: bool = True
    """Whether the figures of `device` are its own. Those of a product without an entry of its own
    (an RTX 4090 Laptop GPU, say) are its arch's default device's, with its own SM count."""

    @classmethod
    def named(cls, name: str) -> Target:
        """The target that `name` means: an arch (then its default device) or a device.

        Raises TunefaError for a name that means neither.
        """
        return cls(*archs.find(name))

    @classmethod
    def seen(cls, name: str, compute_capability: tuple[int, int], sms: int) -> Target:
        """The target of an NVIDIA device that its driver calls `name`.

        Raises TunefaError for a compute capability that no arch has.
        """
        with contextlib.suppress(TunefaError):
            return cls.named(name)
        arch_name = "sm{}{}".format(*compute_capability)
        if arch_name not in archs.names("nvidia"):
            raise TunefaError(
                f"{name} is {arch_name}, which tunefa does not know: name one of "
                f"{', '.join(archs.names('nvidia'))} with --arch, or add "
                f"tunefa/spec/archs/{arch_name}.yaml"
            )
        arch = archs.load(arch_name)
        device = replace(arch.device(), name=name, match=(name.lower(),), sms=sms)
        return cls(arch, device, is_known_product=False)

    def __str__(self) -> str:
        """`NVIDIA H200 (sm90)`."""
        return f"{self.device.name} ({self.arch.name})"


@dataclass(frozen=True)
class Case:
    """One kernel on one workload and target: what a config is compiled, timed and kept for."""

    kernel: Kernel
    workload: Workload
    target: Target

    @classmethod
    def from_names(cls, kernel: str, workload: str, arch: str) -> Case:
        """The case with these `names`, in a process that was told no more; its device is the arch's
        default.

        Raises TunefaError for a name that is unknown.
        """
        return cls(kernels.load(kernel), Workload.parse(workload), Target.named(arch))

    @property
    def names(self) -> tuple[str, str, str]:
        """(kernel, workload, arch) as text, to tell another process."""
        return self.kernel.name, str(self.workload), self.arch.name

    @property
    def arch(self) -> Arch:
        """The target's."""
        return self.target.arch

    @property
    def device(self) -> Device:
        """The target's."""
        return self.target.device

    def why_not(self) -> str | None:
        """Why the kernel does not serve the workload on the target, in words; None if it does."""
        return self.kernel.why_not(self.workload, self.arch)

    def default(self) -> dict[str, Any]:
        """The config that is sound without a search.

        Raises TunefaError when the space has none for this case.
        """
        return self.kernel.default(self.workload, self.arch)

    def feasible(self) -> Feasible:
        """Every config that no rule refuses, and the refusals by rule."""
        return self.kernel.space.feasible(self.workload, self.arch)

    def refusal(self, config: Config) -> str | None:
        """The first rule that refuses the config; None if it can run."""
        return self.kernel.refusal(config, self.workload, self.arch)

    def refusals(self, config: Config) -> tuple[str, ...]:
        """All rules that refuse a config of the space."""
        return self.kernel.space.refusals(config, self.workload, self.arch)

    def estimate(self, config: Config) -> dict[str, float]:
        """Lower bounds of the resources, by the names of the space's file."""
        return self.kernel.space.estimate(config, self.workload, self.arch)

    def shared_memory(self, config: Config) -> SharedMemory | None:
        """The layout of shared memory; None where the compiler makes it."""
        return self.kernel.space.shared_memory(config, self.workload, self.arch)

    def tiling(self, config: Config) -> Tiling:
        """The config as the cost model of GPUs sees it."""
        return self.kernel.space.tiling(config, self.workload, self.arch)

    def tiling_and_estimate(self, config: Config) -> tuple[Tiling, dict[str, float]]:
        """Both, for GPUs, in about half of the time."""
        return self.kernel.space.tiling_and_estimate(config, self.workload, self.arch)

    def npu_tiling(self, config: Config) -> NpuTiling:
        """The config as the cost model of NPUs sees it."""
        return self.kernel.space.npu_tiling(config, self.workload, self.arch)
