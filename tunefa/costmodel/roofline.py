"""The roofline: the least time in which a chip can compute a workload, whatever the kernel.

Each bound is an amount of work divided by a peak rate of the chip: the products by that of the
tensor cores (on NPUs, the cube units), the exponentials by that of the special-function units, and
the inputs and outputs, each moved once, by the bandwidth of the memory. The largest bound counts.
Source of the method: Williams et al., "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tunefa.spec.arch import GpuArch
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.spec.workload_parts import CACHE_OPS

TENSOR, EXP2, HBM = "tensor cores", "exp2 units", "HBM bandwidth"
DECODE_ROWS = 16
"""A workload with so few query rows is decode-like: it reads K and V and computes little."""


@dataclass(frozen=True)
class Roofline:
    """The bounds of one workload on one chip, in us."""

    bounds_us: Mapping[str, float] = field(hash=False)

    @property
    def bound_by(self) -> str:
        """The name of the largest bound."""
        return max(self.bounds_us, key=lambda name: self.bounds_us[name])

    @property
    def least_us(self) -> float:
        """The least time that the chip needs, in us."""
        return self.bounds_us[self.bound_by]


def roofline(workload: Workload, target: Target) -> Roofline:
    """Returns the bounds of a workload on a target, at its boost clock."""
    arch, device = target.arch, target.device
    rates = device.tensor_flops_per_clock_per_sm
    by_tf32 = workload.dtype == "fp32" and "tf32" in rates
    rate = rates["tf32"] / workload.tf32_products if by_tf32 else rates.get(workload.dtype)
    per_us = device.sms * device.boost_mhz
    bounds = {HBM: workload.io_bytes / device.hbm_bytes_per_s * 1e6}
    if rate is not None:
        bounds[TENSOR] = workload.flops / (rate * per_us)
    if isinstance(arch, GpuArch) and workload.exp2_count:
        count = workload.exp2_count * (1 + workload.softcap)
        bounds[EXP2] = count / (arch.exp2_per_clock_per_sm * per_us)
    return Roofline(bounds)


def cache_us(workload: Workload, target: Target) -> float:
    """Returns the least time, in us, to read the keys and values of a cache from the memory, with
    queries and output; 0.0 for ops without a cache, and for a product that is not known.

    Other ops have keys and rows that masks may hide, so they may move fewer bytes than they have.
    """
    if workload.op not in CACHE_OPS or not target.is_known_product:
        return 0.0
    return roofline(workload, target).bounds_us[HBM]


def kv_bytes(workload: Workload) -> int:
    """Returns the bytes of K and V."""
    keys = sum(keys for _, keys in workload.lengths)
    return workload.heads_kv * keys * workload.kv_columns * workload.kv_bytes
