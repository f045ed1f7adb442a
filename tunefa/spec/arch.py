"""Limits and peaks of one chip family, and the devices that carry it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tunefa.errors import unknown

_ANOTHER_PRODUCT = frozenset({"d", "laptop", "mig", "super", "ti"})
"""Words that turn a device's name into that of a smaller chip: an RTX 4090 Laptop GPU has 76 SMs,
an RTX 4090 128. Such a device is unknown rather than mistaken."""


@dataclass(frozen=True)
class Device:
    """One product. Its published tensor peak is `sms` x rate x `boost_mhz`."""

    name: str
    """As `torch.cuda.get_device_name` says it."""
    match: tuple[str, ...]
    """Lower-case parts of a device name that mean this device."""
    sms: int
    """Of an NPU, its cores with a cube."""
    boost_mhz: float
    """Clock behind the published tensor peak; a kernel at the power limit runs below it."""
    l2_bytes: int
    """As the driver reports it."""
    hbm_bytes_per_s: float
    """Peak of the device's memory, of whatever kind that is."""
    tensor_flops_per_clock_per_sm: Mapping[str, float] = field(hash=False)
    """By dtype; the arch's, except where this product is fused to another rate."""
    l2_bytes_per_clock: float
    """Read bandwidth of the whole chip's L2."""
    memory_bytes: int | None = None
    power_w: float | None = None
    vector_cores: int | None = None
    """Of an NPU."""
    max_mhz: float | None = None
    """Highest clock the driver allows, where it differs from `boost_mhz`."""

    def tensor_flops_per_s(self, dtype: str) -> float:
        """Published dense peak for `dtype`, FLOP/s (for int8 OP/s).

        Raises TunefaError if the tensor cores do not take `dtype`.
        """
        rates = self.tensor_flops_per_clock_per_sm
        if dtype not in rates:
            raise unknown(f"tensor dtype of {self.name}", dtype, rates)
        return self.sms * rates[dtype] * self.boost_mhz * 1e6


@dataclass(frozen=True, kw_only=True)
class Arch:
    """One chip family, of whatever vendor: what its kinds have in common."""

    name: str
    """"sm90"."""
    vendor: str
    features: frozenset[str]
    """"tma", "wgmma", "fp8" and the like."""
    tensor_flops_per_clock_per_sm: Mapping[str, float] = field(hash=False)
    """By dtype: dense, fp32 accumulation, of the first device (see `Device`)."""
    devices: tuple[Device, ...]
    """The first is the default."""
    sources: Mapping[str, str] = field(hash=False)
    """Citation by key; one that begins with "Estimate:" stands for an estimate."""
    torch_device: ClassVar[str] = "cuda"
    """What PyTorch calls a device of it."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes it has tensor peaks for, and fp32."""
        return (*self.tensor_flops_per_clock_per_sm, "fp32")

    def env(self) -> dict[str, Any]:
        """The names that a space's expressions may use for this arch."""
        return {"arch": self.name}

    def device(self, name: str | None = None) -> Device:
        """The device of this arch that `name` means, the default one for None.

        Raises TunefaError for a name that means none of them.
        """
        if name is None:
            return self.devices[0]
        found = max(matches(self, name), key=lambda each: each[0], default=None)
        if found is None:
            raise unknown(f"{self.name} device", name, [each.name for each in self.devices])
        return found[1]


@dataclass(frozen=True, kw_only=True)
class GpuArch(Arch):
    """Of NVIDIA: what fits an SM and what an SM does per clock."""

    compute_capability: tuple[int, int]
    registers_per_sm: int
    """32-bit registers; also the most that one block may have."""
    max_registers_per_thread: int
    register_allocation_unit: int
    """A warp gets its registers in multiples of this."""
    register_partitions_per_sm: int
    """Parts of the register file; a warp lives in one of them."""
    max_threads_per_sm: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    max_threads_per_block: int
    smem_per_block_bytes: int
    """The most a kernel can opt in to."""
    smem_per_sm_bytes: int
    smem_reserved_per_block_bytes: int
    """Taken by the driver for each resident block."""
    smem_allocation_unit_bytes: int
    fp32_fma_per_clock_per_sm: float
    exp2_per_clock_per_sm: float
    """Of the special-function unit."""
    smem_bytes_per_clock_per_sm: float
    l2_bytes_per_clock: float
    """Of the first device's whole chip."""

    @property
    def target(self) -> int:
        """What compilers call it: 90 for compute capability 9.0."""
        return self.compute_capability[0] * 10 + self.compute_capability[1]

    @property
    def warp_size(self) -> int:
        """Threads of a warp."""
        return self.max_threads_per_sm // self.max_warps_per_sm

    def env(self) -> dict[str, Any]:
        """The names that a space's expressions may use for this arch."""
        return {
            **super().env(),
            "compute_capability": self.target,
            "smem_per_block_bytes": self.smem_per_block_bytes,
            "smem_per_sm_bytes": self.smem_per_sm_bytes,
            "registers_per_sm": self.registers_per_sm,
            "max_registers_per_thread": self.max_registers_per_thread,
            "max_threads_per_block": self.max_threads_per_block,
            **{f"has_{each}": each in self.features for each in ("tma", "wgmma", "fp8")},
        }


@dataclass(frozen=True, kw_only=True)
class NpuArch(Arch):
    """Of Huawei: the memories of one core, which programs fill and no cache manages.

    A core is a cube, for products, with L1, L0A, L0B and L0C, and vector cores with a UB each.
    """

    torch_device: ClassVar[str] = "npu"

    ub_bytes: int
    """What programs get of one vector core's Unified Buffer."""
    l1_bytes: int
    l0a_bytes: int
    l0b_bytes: int
    l0c_bytes: int

    @property
    def target(self) -> str:
        """What compilers call it: "Ascend910B3"."""
        return self.devices[0].name

    @property
    def capacities(self) -> dict[str, int]:
        """Bytes by the names of `MemoryPlan`'s memories in `tunefa.compile.ascend.compiler_report`."""
        return {"ub": self.ub_bytes, "l1": self.l1_bytes, "l0c": self.l0c_bytes}

    def env(self) -> dict[str, Any]:
        """The names that a space's expressions may use for this arch."""
        return {
            **super().env(),
            "cores": self.devices[0].sms,
            "ub_bytes": self.ub_bytes,
            "l1_bytes": self.l1_bytes,
            "l0a_bytes": self.l0a_bytes,
            "l0b_bytes": self.l0b_bytes,
            "l0c_bytes": self.l0c_bytes,
        }


def matches(arch: Arch, name: str) -> Iterator[tuple[int, Device]]:
    """The devices whose name or match is in `name`, word by word, with how much of it they explain.

    Whole words, so that "NVIDIA A100" is no A10; the longest wins, so that an "NVIDIA H200 NVL" is
    no H200.
    """
    words = _words(name)
    if not _ANOTHER_PRODUCT.isdisjoint(words.split()):
        return
    for device in arch.devices:
        for part in map(_words, (device.name, *device.match)):
            if part in words:
                yield len(part), device


def _words(text: str) -> str:
    """`text` in lower case with one space around each word, so that `in` compares whole words."""
    return f" {' '.join(re.findall('[a-z0-9]+', text.lower()))} "
