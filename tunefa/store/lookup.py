"""The lookup: which config to run for a workload on a target.

It takes the first of these that exists: a record measured for this workload on this device; the
nearest measured record; the nearest record predicted by the cost model for the arch; the default of
the kernel with the lowest `priority` number.

How near a measured record is depends on its workload and on its device together (see
`tunefa.store.distances`). Distances are in octaves (factors of two), and records of workloads that
are further away than `FAR_OCTAVES` are not used. Another device of the arch counts as some more
octaves, so its record for this very workload comes before one of this device for a workload that is
far away. Of measured records that are equally near, those in the mode `eager` (kernels launched
from Python) come before others, because the runtime launches from Python; then those in the mode
`step`, as programs capture a call between others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from tunefa.errors import TunefaError
from tunefa.spec import matmul
from tunefa.spec.arch import Arch
from tunefa.spec.target import Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import ACCURACIES, Workload
from tunefa.spec.workload_parts import CACHE_OPS
from tunefa.store.distances import FAR_OCTAVES, apart, distance
from tunefa.store.record import Record
from tunefa.store.results import Store

How = Literal["exact", "nearest", "other-device", "predicted", "default"]


class KernelLike(Protocol):
    """The part of a kernel that the lookup needs."""

    @property
    def name(self) -> str:
        """The name of its file, without the suffix."""

    def priority(self, workload: Workload, arch: Arch) -> int:
        """The rank where no record applies: the kernel with the lowest number runs."""

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
    """The expected gain of the config over the record's; 0 if it is the record's."""
    specialized: dict[str, Any] = field(default_factory=dict)
    """The parameters that the kernel's host side changed for this workload, and their values."""
    remark: str = ""
    """The remark of the store on the record, see `Store.remark`."""
    is_final: bool = field(default=False, compare=False)
    """Whether no parameter is changed for the workload."""

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
        far = f", {self.octaves:.1f} octaves (factors of two) away" if self.octaves else ""
        other = f", a config {self.gain:.0%} faster than its own expected" if self.gain else ""
        remark = f"; {self.remark}" if self.remark else ""
        return f"{self.how}: {source} for {self.record.workload}{far}{other}{specialized}{remark}"

    def seen_from(self, workload: Workload, target: Target) -> Choice:
        """Returns the choice with the distance of its record from a workload on a target."""
        if self.record is None:
            return self
        return replace(self, octaves=distance(self.record.workload, workload))


def lookup(
    store: Store,
    workload: Workload,
    target: Target,
    kernels: Sequence[KernelLike],
    ranked: Sequence[Record] | None = None,
) -> Choice:
    """Returns the config to run for `workload` on `target`, whose device has the name in records.

    `ranked` are the records that may be used, as `by_trust` sorts them; None stands for all of the
    store.

    The device need not be present. Records are not used if their kernel is not in `kernels` or does
    not serve the workload, if their workload is too far away, or if their config is refused for
    this workload. Raises TunefaError if no kernel serves the workload.
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

    if ranked is None:
        ranked = by_trust(store.records(), workload, target)
    found = store.current([record for record in ranked if runs(record)])
    if found:
        record = found[0]
        octaves = distance(record.workload, workload)
        how = _how(record, workload, target.device.name)
        # A record of another device is not confirmed on this one, whatever compiled it.
        remark = store.remark(record) if how in ("exact", "nearest") else ""
        config = dict(record.config)
        return Choice(record.kernel, config, how, record, octaves, remark=remark)
    first = min(serving.values(), key=lambda kernel: kernel.priority(workload, arch))
    return Choice(first.name, first.default(workload, arch), "default", None)


def by_trust(records: Sequence[Record], workload: Workload, target: Target) -> list[Record]:
    """Returns the records of this arch and the workload's family, the most trusted first.

    Measured records come first. Records of equal trust are sorted by `apart`, then by
    `Record.rank`, then in the store's order.
    """

    def trust_key(record: Record) -> tuple[Any, ...]:
        # Another workload may have distance 0: batch 2 with 32 heads, and batch 4 with 16.
        octaves = round(apart(record, workload, target), 6)  # so that half and double are equal
        return (record.device is None, octaves, record.workload != workload, record.rank)

    arch = target.arch.name
    same = [r for r in records if r.arch == arch and may_serve(r.workload, workload)]
    return sorted(same, key=trust_key)


def _how(record: Record, workload: Workload, device_name: str) -> How:
    """Returns how a record that applies would be chosen."""
    if record.device is None:
        return "predicted"
    # The driver's whole names differ for a part of a chip (MIG), and for its PCIe board.
    if record.device != device_name:
        return "other-device"
    return "exact" if record.workload == workload else "nearest"


def may_serve(recorded: Workload, workload: Workload) -> bool:
    """Returns whether a config that was recorded for one workload computes the same kind of problem
    as another, and not less exactly; one whose bits depend on the batch serves only workloads that
    allow it."""
    exact_enough = ACCURACIES.index(recorded.accuracy) <= ACCURACIES.index(workload.accuracy)
    if not exact_enough or _family(recorded) != _family(workload):
        return False
    return recorded.op != "decode" or workload.batchvariant or not recorded.batchvariant


def _family(workload: Workload) -> tuple[object, ...]:
    """Returns what must be equal for a record to apply: all that changes how well a config does.

    bf16 and fp16 are one family: only the names of instructions differ.
    """
    if workload.op == matmul.OP:
        return matmul.own(workload).family
    return (
        workload.op,
        "16 bits" if workload.dtype in ("bf16", "fp16") else workload.dtype,
        workload.head_dim,
        workload.head_dim_v,
        workload.causal,
        workload.window_left is None,
        workload.window_right is None,
        workload.softcap,
        workload.sinks,
        workload.e4m3cache,
        workload.mla,
        workload.prefix,
        workload.page_size is None,
        workload.varlen and workload.op not in CACHE_OPS,  # theirs read lengths on the device
        workload.deterministic,
    )
