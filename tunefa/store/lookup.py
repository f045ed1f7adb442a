"""The lookup: which config to run for a workload on a target.

It takes the first of these that exists: a record measured for this workload on this device; for the
nearest workload on this device; on another device of the arch; a record predicted by the cost model
for the arch; the default of the kernel with the lowest `priority` number.

An octave is a factor of two. The distance of two workloads (see `distance`) is in octaves, and
records of workloads that are further away than `FAR_OCTAVES` are not used. Of measured records that
are equally near, those in the mode `eager` (kernels launched from Python) come before those in the
mode `graph` (CUDA graphs), because the runtime launches from Python.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tunefa.errors import TunefaError
from tunefa.spec.arch import Arch
from tunefa.spec.target import Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload
from tunefa.store.record import Record
from tunefa.store.results import Store, current

FAR_OCTAVES = 3.0
"""The limit is, for example, sequences four times as long in a quarter of the batch. Defaults of
kernels depend on lengths, and are better beyond: with head_dim 64, sequences of 16k and of 512
tokens need different numbers of warpgroups."""

How = Literal["exact", "nearest", "other-device", "predicted", "default"]


class KernelLike(Protocol):
    """The part of a kernel that the lookup needs."""

    @property
    def name(self) -> str:
        """The name of its file, without the suffix."""

    @property
    def priority(self) -> int:
        """The rank that decides when no record applies: the kernel with the lowest number runs."""

    def why_not(self, workload: Workload, arch: Arch) -> str | None:
        """Returns why it does not serve the workload on the arch; None if it does."""

    def refusal(self, config: Config, workload: Workload, arch: Arch) -> str | None:
        """Returns the rule that refuses the config; None if the config is feasible."""

    def default(self, workload: Workload, arch: Arch) -> dict[str, Any]:
        """Returns the config to run when no record applies."""


@dataclass(frozen=True)
class Choice:
    """The config to run, and why it was chosen."""

    kernel: str
    config: dict[str, Any]
    how: How
    record: Record | None
    """The record that the config was taken from; None for a default."""
    octaves: float = 0.0
    """The `distance` from the record's workload to the requested one."""
    gain: float = 0.0
    """How much faster the config is expected to be than the record's; 0 if it is the record's."""
    specialized: dict[str, Any] = field(default_factory=dict)
    """The parameters that the kernel's host side changed for this workload, and their values."""

    @property
    def why(self) -> str:
        """The reason for the choice, in one sentence."""
        specialized = "".join(f", with {k}={value}" for k, value in self.specialized.items())
        if self.record is None:
            default = f"no result applies, so {self.kernel} runs with its default config"
            return f"default: {default}{specialized}"
        source = f"measured on {self.record.device}"
        if self.record.device is None:
            source = f"the cost model's choice on {self.record.arch}"
        far = "" if self.how == "exact" else f", {self.octaves:.1f} octaves (factors of two) away"
        other = f", a config {self.gain:.0%} faster than its own expected" if self.gain else ""
        return f"{self.how}: {source} for {self.record.workload}{far}{other}{specialized}"


def lookup(
    store: Store,
    workload: Workload,
    target: Target,
    kernels: Sequence[KernelLike],
    *,
    here: bool = True,
) -> Choice:
    """Returns the config to run for `workload` on `target`, whose device has the driver's name.

    Records are not used if their kernel is not in `kernels` or does not serve the workload, if
    their workload is too far away, or if their config is refused for this workload. `here` says
    whether the device is present. If it is not, records measured on a device of its name count as
    those of another device. Raises TunefaError if no kernel serves the workload.
    """
    arch = target.arch
    reasons = {kernel.name: kernel.why_not(workload, arch) for kernel in kernels}
    serving = {kernel.name: kernel for kernel in kernels if reasons[kernel.name] is None}
    if not serving:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise TunefaError(f"no kernel serves {workload} on {arch.name} ({why or 'no kernels'})")

    def runs(record: Record) -> bool:
        kernel = serving.get(record.kernel)
        if kernel is None or distance(record.workload, workload) > FAR_OCTAVES:
            return False
        return kernel.refusal(record.config, workload, arch) is None

    device_name = target.device.name if here else None
    ranked = by_trust(store.records(), workload, arch.name, device_name)
    found = current([record for record in ranked if runs(record)])
    if found:
        record = found[0]
        octaves = distance(record.workload, workload)
        how = _how(record, workload, device_name)
        return Choice(record.kernel, dict(record.config), how, record, octaves)
    first = min(serving.values(), key=lambda kernel: kernel.priority)
    return Choice(first.name, first.default(workload, arch), "default", None)


def distance(a: Workload, b: Workload) -> float:
    """Returns the distance of two workloads of one family, in octaves (factors of two).

    It is the Euclidean distance of logarithms, because the benefit of block sizes and pipelines
    depends on ratios of lengths, not on differences. Both sequence lengths have the weight 1: they
    set the number of tiles, and the length of each tile's loop. The window has the weight 1 as
    well: it limits the length of the loop. batch x heads has the weight 1/2: it only changes the
    number of CTAs. So has the group: it only changes how often K and V are read again.
    """
    return math.hypot(
        0.5 * math.log2((a.batch * a.heads) / (b.batch * b.heads)),
        math.log2(a.seqlen_q / b.seqlen_q),
        math.log2(a.seqlen_k / b.seqlen_k),
        _octaves(a.window_left, b.window_left, own_key=1),
        _octaves(a.window_right, b.window_right, own_key=0),
        0.5 * math.log2(a.group / b.group),
    )


def _octaves(a: int | None, b: int | None, own_key: int) -> float:
    """Returns the octaves between one side of two windows; 0 without a window.

    `own_key` is 1 for the left side, which also has the key on the diagonal.
    """
    if a is None or b is None:
        return 0.0
    return math.log2((a + own_key) / (b + own_key))


def by_trust(
    records: Sequence[Record], workload: Workload, arch: str, device_name: str | None
) -> list[Record]:
    """Returns the records of this arch and the workload's family, the most trusted first.

    Records of equal trust are sorted by distance, then by `Record.rank`, then in the store's order.
    """
    trust: tuple[How, ...] = ("exact", "nearest", "other-device", "predicted")

    def trust_key(record: Record) -> tuple[Any, ...]:
        how = _how(record, workload, device_name)
        # Another workload may have distance 0: batch 2 with 32 heads, and batch 4 with 16.
        octaves = round(distance(record.workload, workload), 6)  # so that half and double are equal
        return (trust.index(how), record.workload != workload, octaves, record.rank)

    family = _family(workload)
    same = [r for r in records if r.arch == arch and _family(r.workload) == family]
    return sorted(same, key=trust_key)


def _how(record: Record, workload: Workload, device_name: str | None) -> How:
    """Returns how a record that applies would be chosen."""
    if record.device is None:
        return "predicted"
    # The driver's whole names differ for a part of a chip (MIG), and for its PCIe board.
    if record.device != device_name:
        return "other-device"
    return "exact" if record.workload == workload else "nearest"


def _family(workload: Workload) -> tuple[object, ...]:
    """Returns what must be equal for a record to apply: all that changes the compiled code."""
    return (
        workload.op,
        workload.dtype,
        workload.head_dim,
        workload.head_dim_v,
        workload.causal,
        workload.window_left is None,
        workload.window_right is None,
        workload.softcap,
        workload.varlen,
    )
