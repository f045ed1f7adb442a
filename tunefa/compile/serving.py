"""Whether a record serves with the kernels and compilers of this machine.

It is decided here alone: the runtime, lock files and all reports ask this module. A record is

* `confirmed` if it was made with this source of its kernel and with these compilers;
* `unconfirmed` if only a compiler is another one, or none is installed to compare with. Its config
  probably compiles to working code: the runtime tries it, and `tunefa verify` confirms it;
* `refused` if its kernel is not installed or has another source (other than in comments and names,
  see `tunefa.store.source_hashes`), if a rule refuses its config, or if `tunefa verify` found that
  it does not work with these compilers; and, where a device is asked about, if it was not measured
  on that device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tunefa.compile import provenance
from tunefa.errors import TunefaError, unknown
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Target
from tunefa.store import results as store
from tunefa.store.record import Record
from tunefa.store.results import Store

State = Literal["confirmed", "unconfirmed", "refused"]


@dataclass(frozen=True)
class Serving:
    """Whether a record serves."""

    state: State
    why: str = ""
    """The reason that it is not confirmed, in words that follow "it was"; empty if it is."""


CONFIRMED = Serving("confirmed")
FAILED = "failed"
"""The key in a record's provenance of the compilers with which `tunefa verify` found that it does
not work, and why: `{triton: 3.7.1, compiler: ptxas 12.8.93, why: ...}`."""


class Installed:
    """The kernels and compilers of this machine. It asks for versions once, as that is slow."""

    def __init__(self, known: Sequence[Kernel] | None = None) -> None:
        """`known` are the kernels; by default all that are installed."""
        self._kernels: dict[str, Kernel | None] = dict.fromkeys(kernels.names())
        if known is not None:
            self._kernels = {kernel.name: kernel for kernel in known}
        self._now: dict[str, Mapping[str, Any]] = {}

    def kernel(self, name: str) -> Kernel:
        """Returns the kernel with this name.

        Raises TunefaError if it is not installed, or cannot be loaded.
        """
        if name not in self._kernels:
            raise unknown("kernel", name, self._kernels)
        found = self._kernels[name] or kernels.load(name)
        self._kernels[name] = found
        return found

    def serving(self, record: Record, target: Target | None = None) -> Serving:
        """Returns whether a record serves; with a target, whether it does so as a measurement of
        that device, which has the driver's name."""
        if target is not None and not is_measured_on(record, target):
            where = f"measured on {record.device}" if record.device else "predicted, not measured"
            return Serving("refused", where)
        made = self.as_made(record)
        if made.state == "refused":
            return made
        try:
            kernel, arch = self.kernel(record.kernel), archs.load(record.arch)
        except TunefaError as error:
            return Serving("refused", f"made for what is not known here: {error}")
        if why := kernel.why_not(record.workload, arch):
            return Serving("refused", f"made for what {kernel.name} does not serve: {why}")
        if rule := kernel.refusal(record.config, record.workload, arch):
            return Serving("refused", f"made with a config that the space refuses: {rule}")
        return made

    def as_made(self, record: Record) -> Serving:
        """Returns whether a record serves, by its kernel's source and its compilers alone.

        That takes microseconds; the rules for its config take longer.
        """
        verb = "measured" if record.device else "predicted"
        try:
            now = self._versions(record.kernel)
        except TunefaError as error:
            return Serving("refused", f"made for what is not known here: {error}")
        if record.source_hash != now["source_hash"]:
            hashes = f"({record.source_hash}, and this machine has {now['source_hash']})"
            return Serving("refused", f"{verb} with another source of {record.kernel} {hashes}")
        if record.objective == "estimated":  # no compiler ran
            return CONFIRMED
        if why := _failed(record, now):
            return Serving("refused", f"found not to work with these compilers: {why}")
        others = provenance.other_compilers(record, now)
        if not others:
            return CONFIRMED
        return Serving("unconfirmed", f"{verb} with {'; with '.join(map(_other, others))}")

    def usable(self, records: Sequence[Record]) -> list[Record]:
        """Returns the records whose kernel's source serves, in their order.

        Where a confirmed record answers the same question (see `tunefa.store.results.question`),
        unconfirmed ones are left out, even newer ones.
        """
        states = [(record, self.as_made(record).state) for record in records]
        confirmed = {store.question(record) for record, state in states if state == "confirmed"}
        return [
            record
            for record, state in states
            if state == "confirmed"
            or (state == "unconfirmed" and store.question(record) not in confirmed)
        ]

    def remark(self, record: Record) -> str:
        """Returns the remark that a choice of this record needs: that it is unconfirmed, or ""."""
        made = self.as_made(record)
        if made.state != "unconfirmed":
            return ""
        return f"{made.why}: unconfirmed, `tunefa verify` confirms it"

    def _versions(self, name: str) -> Mapping[str, Any]:
        """The versions for a kernel. Raises TunefaError if it is not installed."""
        if name not in self._now:
            self._now[name] = provenance.quick(self.kernel(name))
        return self._now[name]


class UsableStore(Store):
    """The records of another store that serve with what is installed, and the remarks on them."""

    def __init__(self, whole: Store, installed: Installed) -> None:
        super().__init__(whole.roots)
        self._whole, self._installed = whole, installed

    def records(self) -> list[Record]:
        """Returns the usable records, see `Installed.usable`."""
        return self._installed.usable(self._whole.records())

    def remark(self, record: Record) -> str:
        """Returns the remark that a choice of this record needs, see `Installed.remark`."""
        return self._installed.remark(record)


def best(whole: Store, installed: Installed) -> list[Record]:
    """Returns the best record of each (arch, device, workload) that serves, sorted by these three;
    the best one of all where none serves."""
    serving = {store.place(record): record for record in UsableStore(whole, installed).best()}
    every = {store.place(record): record for record in whole.best()} | serving
    return [every[key] for key in sorted(every)]


def is_measured_on(record: Record, target: Target) -> bool:
    """Returns whether the record was measured on a device of the target's name."""
    # Names are compared exactly: a part of a chip (MIG) and its PCIe board are other devices.
    return (record.arch, record.device) == (target.arch.name, target.device.name)


def failed(record: Record, kernel: Kernel, why: str) -> Record:
    """Returns the record with the note that it does not work with the compilers of this machine."""
    made = provenance.of(kernel)
    note = {key: made[key] for key in ("triton", "compiler") if key in made}
    return replace(record, provenance={**record.provenance, FAILED: {**note, "why": why}})


def _failed(record: Record, now: Mapping[str, Any]) -> str | None:
    """The reason that the record fails with the compilers in `now`; None if that is not known."""
    note = record.provenance.get(FAILED)
    if not isinstance(note, Mapping):
        return None
    same = all(note.get(key) == now[key] for key in ("triton", "compiler") if key in now)
    return str(note.get("why")) if same else None


def _other(change: tuple[str, str | None, str | None]) -> str:
    """Words for a compiler that has changed: `Triton 3.6.0, and this machine has 3.7.1`."""
    key, then, here = change
    name, was = _spelled(key, then)
    own, is_ = _spelled(key, here)
    name = name or own or "compiler"
    was = f"{name} {was}" if was else f"an unknown version of {name}"
    return f"{was}, and this machine has {is_ or f'no {name} to compare with'}"


def _spelled(key: str, version: str | None) -> tuple[str, str]:
    """The name of a compiler and its version, both "" where unknown."""
    if key == "triton":
        return "Triton", version or ""
    name, _, number = (version or "").partition(" ")
    return {"nvrtc": "NVRTC"}.get(name, name), number
