"""Which config to run for a workload on a chip: the best record that applies, else the default.

From the most to the least trusted: a measurement of this workload on this device; of the nearest
workload on this device; on another device of the arch; the model's prediction for the arch; the
default of the first kernel, by its `priority`, that serves it. A workload further away than
`FAR_OCTAVES` says nothing. Of measurements equally near, eager ones come before those of CUDA
graphs: that is how the runtime launches.
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
"""Four times as long with a quarter of the sequences. Kernels' defaults know lengths: at head_dim
64, rows of 16k tokens and of 512 want different numbers of warpgroups."""

How = Literal["exact", "nearest", "other-device", "predicted", "default"]


class KernelLike(Protocol):
    """What lookup asks of a kernel."""

    @property
    def name(self) -> str:
        """The stem of its file."""

    @property
    def priority(self) -> int:
        """Its place among kernels of which nothing is known: the lowest runs."""

    def why_not(self, workload: Workload, arch: Arch) -> str | None:
        """Why it does not serve this workload there, in words; None if it does."""

    def refusal(self, config: Config, workload: Workload, arch: Arch) -> str | None:
        """The rule that refuses a config there; None if it can run. Missing names refuse too."""

    def default(self, workload: Workload, arch: Arch) -> dict[str, Any]:
        """The config to run when nothing is known."""


@dataclass(frozen=True)
class Choice:
    """The config to run, and why this one."""

    kernel: str
    config: dict[str, Any]
    how: How
    record: Record | None
    """The record the config is from; None for a default."""
    octaves: float = 0.0
    """`distance` from the record's workload to the one that was asked for."""
    gain: float = 0.0
    """By how much the config is expected to be faster than the record's; 0 where it is that one."""
    specialized: dict[str, Any] = field(default_factory=dict)
    """What the kernel's host side set otherwise for this workload."""

    @property
    def why(self) -> str:
        """One sentence for people."""
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
    """The config to run for `workload` on a target whose device has the driver's name.

    Passed over are records of kernels that are not in `kernels` or do not serve the workload, those
    of workloads too far away, and configs that cannot run for it. `here`: whether the device is
    there; where it is not, records measured on one of its name count as another device's.

    Raises `TunefaError` when no kernel serves the workload.
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
    """How far apart two workloads of one family are for a config, in octaves (factors of two).

    Euclidean in log2, for block sizes and pipelines pay off by ratios of lengths, not differences.
    The two lengths count fully: they set how many tiles there are and how long each one's loop is.
    So do the sides of a window, which set the latter where there are any.
    batch x heads counts half, because it only repeats the same programs (it decides how full the
    last wave is), and so does the group, which only changes how often K and V are read again.
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
    """Between one side of two windows; 0 where there is none. The left one has the query's own key
    besides."""
    if a is None or b is None:
        return 0.0
    return math.log2((a + own_key) / (b + own_key))


def by_trust(
    records: Sequence[Record], workload: Workload, arch: str, device_name: str | None
) -> list[Record]:
    """Records of this arch and the workload's family, the most trusted first.

    Records of equal trust come by distance; ties by `Record.rank`, then the order of the store.
    """
    trust: tuple[How, ...] = ("exact", "nearest", "other-device", "predicted")

    def order(record: Record) -> tuple[Any, ...]:
        how = _how(record, workload, device_name)
        # At distance 0 another workload may stand: batch 2 of 32 heads, batch 4 of 16.
        octaves = round(distance(record.workload, workload), 6)  # half and double are equally far
        return (trust.index(how), record.workload != workload, octaves, record.rank)

    family = _family(workload)
    same = [r for r in records if r.arch == arch and _family(r.workload) == family]
    return sorted(same, key=order)


def _how(record: Record, workload: Workload, device_name: str | None) -> How:
    if record.device is None:
        return "predicted"
    # The driver's names as they are: part of a chip (MIG) and its PCIe board are other devices.
    if record.device != device_name:
        return "other-device"
    return "exact" if record.workload == workload else "nearest"


def _family(workload: Workload) -> tuple[object, ...]:
    """What must agree for a config to carry over: it decides which code is compiled."""
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
