"""An arch: the limits and peak rates of one chip family, and the devices (products) in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tunefa.errors import unknown

_ANOTHER_PRODUCT = frozenset({"d", "laptop", "mig", "super", "ti"})
"""Words that make a device's name that of another chip: an RTX 4090 Laptop GPU has 76 SMs, an RTX
4090 has 128. A name with one of these words matches no device, rather than a wrong one."""


@dataclass(frozen=True)
class Device:
    """One product.

    Its published tensor peak is `sms` x `tensor_flops_per_clock_per_sm` x `boost_mhz`.
    """

    name: str
    """The name that `torch.cuda.get_device_name` returns, and that records have."""
    match: tuple[str, ...]
    """Lower-case parts of a device name that identify this device."""
    sms: int
    """Streaming multiprocessors of a GPU; cores with a cube unit of an NPU."""
    boost_mhz: float
    """The clock behind the published tensor peak. A kernel at the power limit runs below it."""
    l2_bytes: int
    """The size of the L2 cache that the driver reports."""
    hbm_bytes_per_s: float
    """Peak bandwidth of the device's memory, which may be HBM, GDDR or LPDDR."""
    tensor_flops_per_clock_per_sm: Mapping[str, float] = field(hash=False)
    """By dtype. Equal to the arch's rates, unless this product is limited to lower ones."""
    l2_bytes_per_clock: float
    """Read bandwidth of the L2 cache, for the whole chip."""
    memory_bytes: int | None = None
    power_w: float | None = None
    vector_cores: int | None = None
    """Vector cores of an NPU; None for a GPU."""
    max_mhz: float | None = None
    """The highest clock that the driver allows, if it differs from `boost_mhz`."""
    aliases: tuple[str, ...] = ()
    """Other names that drivers have for exactly this product. Records have `name` for them too."""

    def tensor_flops_per_s(self, dtype: str) -> float:
        """Returns the published dense peak for `dtype`, in FLOP/s (OP/s for int8).

        Raises TunefaError if the tensor cores do not support `dtype`.
        """
        rates = self.tensor_flops_per_clock_per_sm
        if dtype not in rates:
            raise unknown(f"tensor dtype of {self.name}", dtype, rates)
        return self.sms * rates[dtype] * self.boost_mhz * 1e6


@dataclass(frozen=True, kw_only=True)
class Arch:
    """One chip family: what GPUs and NPUs have in common."""

    name: str
    """Such as "sm90"."""
    vendor: str
    features: frozenset[str]
    """Such as "tma", "wgmma" and "fp8"."""
    tensor_flops_per_clock_per_sm: Mapping[str, float] = field(hash=False)
    """By dtype: dense, with fp32 accumulation, for the first device (see `Device`)."""
    devices: tuple[Device, ...]
    """The first one is the default."""
    sources: Mapping[str, str] = field(hash=False)
    """Citations by key. One that begins with "Estimate:" marks a number that is estimated."""
    torch_device: ClassVar[str] = "cuda"
    """The type that PyTorch gives to devices of this arch."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes with a tensor peak, and fp32."""
        return (*self.tensor_flops_per_clock_per_sm, "fp32")

    def env(self) -> dict[str, Any]:
        """Returns the names and values that expressions of a search space may read of the arch."""
        return {"arch": self.name}

    def device(self, name: str | None = None) -> Device:
        """Returns the device that `name` identifies, or the default device if `name` is None.

        Raises TunefaError if `name` identifies no device of this arch.
        """
        if name is None:
            return self.devices[0]
        found = max(matches(self, name), key=lambda each: each[0], default=None)
        if found is None:
            raise unknown(f"{self.name} device", name, [each.name for each in self.devices])
        return found[1]


@dataclass(frozen=True, kw_only=True)
class GpuArch(Arch):
    """An NVIDIA chip family: the limits of one SM, and what it does per clock."""

    compute_capability: tuple[int, int]
    registers_per_sm: int
    """32-bit registers of an SM, which one block may have all of."""
    max_registers_per_thread: int
    register_allocation_unit: int
    """Registers are allocated to a warp in multiples of this number."""
    register_partitions_per_sm: int
    """Parts of the register file. All registers of a warp are in one part."""
    max_threads_per_sm: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    max_threads_per_block: int
    smem_per_block_bytes: int
    """The most shared memory that a kernel can opt in to."""
    smem_per_sm_bytes: int
    smem_reserved_per_block_bytes: int
    """Shared memory that the driver takes for each resident block."""
    smem_allocation_unit_bytes: int
    fp32_fma_per_clock_per_sm: float
    exp2_per_clock_per_sm: float
    """The rate of the special-function units (MUFU.EX2)."""
    smem_bytes_per_clock_per_sm: float
    l2_bytes_per_clock: float
    """L2 read bandwidth of the first device, for the whole chip."""

    @property
    def compiler_target(self) -> int:
        """The number that compilers know this arch by: 90 for compute capability 9.0."""
        return self.compute_capability[0] * 10 + self.compute_capability[1]

    @property
    def warp_size(self) -> int:
        """Threads in a warp."""
        return self.max_threads_per_sm // self.max_warps_per_sm

    def env(self) -> dict[str, Any]:
        """Returns the names and values that expressions of a search space may read of the arch."""
        return {
            **super().env(),
            "compute_capability": self.compiler_target,
            "smem_per_block_bytes": self.smem_per_block_bytes,
            "smem_per_sm_bytes": self.smem_per_sm_bytes,
            "registers_per_sm": self.registers_per_sm,
            "max_registers_per_thread": self.max_registers_per_thread,
            "max_threads_per_block": self.max_threads_per_block,
            **{f"has_{each}": each in self.features for each in ("tma", "wgmma", "fp8")},
        }


@dataclass(frozen=True, kw_only=True)
class NpuArch(Arch):
    """A Huawei chip family: the sizes of one core's memories.

    The memories are scratchpads, not caches. A core has one cube unit for matrix products, with the
    memories L1, L0A, L0B and L0C, and vector cores, each with a Unified Buffer (UB).
    """

    torch_device: ClassVar[str] = "npu"

    ub_bytes: int
    """The part of one vector core's Unified Buffer that programs can use."""
    l1_bytes: int
    l0a_bytes: int
    l0b_bytes: int
    l0c_bytes: int

    @property
    def compiler_target(self) -> str:
        """The name that compilers know this arch by, such as "Ascend910B3"."""
        return self.devices[0].name

    @property
    def capacities(self) -> dict[str, int]:
        """Bytes by memory, with the names that `tunefa.spec.trial.MemoryPlan` uses."""
        return {"ub": self.ub_bytes, "l1": self.l1_bytes, "l0c": self.l0c_bytes}

    def env(self) -> dict[str, Any]:
        """Returns the names and values that expressions of a search space may read of the arch."""
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
    """Yields (length of the match, device) for each device whose name or `match` is in `name`.

    Only whole words match, so that "NVIDIA A100" is not an A10. The caller takes the longest match,
    so that "NVIDIA H200 NVL" is not an H200.
    """
    words = _words(name)
    if not _ANOTHER_PRODUCT.isdisjoint(words.split()):
        return
    for device in arch.devices:
        for part in map(_words, (device.name, *device.match, *device.aliases)):
            if part in words:
                yield len(part), device


def _words(text: str) -> str:
    """Returns `text` in lower case with spaces around each word, so that `in` finds whole words."""
    return f" {' '.join(re.findall('[a-z0-9]+', text.lower()))} "
