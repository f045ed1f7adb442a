"""A lock file holds the only records that a frozen process uses, so that all ranks run the same
code.

It serves a call only with a record that was measured for exactly its workload and device, and only
if kernel source and compiler are those of the measurement. Every other call is an error.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunefa.compile import languages
from tunefa.errors import TunefaError, unknown
from tunefa.spec.arch import Arch
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import lookup
from tunefa.store import results as store
from tunefa.store.record import Record

VARIABLE = "TUNEFA_FROZEN"
"""The environment variable that names the lock file."""


class Installed:
    """The kernels and compilers of this machine. It asks for versions once, as that is slow."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self._kernels = {kernel.name: kernel for kernel in kernels}
        self._versions: dict[str, Mapping[str, str]] = {}

    def kernel(self, record: Record) -> Kernel:
        """The kernel of a record.

        Raises TunefaError if its source or its compiler is not what the record was made with.
        """
        if record.kernel not in self._kernels:
            raise unknown("kernel", record.kernel, self._kernels)
        kernel = self._kernels[record.kernel]
        if kernel.language not in self._versions:
            self._versions[kernel.language] = languages.load(kernel.language).versions()
        here, then = self._versions[kernel.language], record.provenance
        # Triton includes its ptxas, so its version is enough; other languages name their compiler.
        what, key = ("Triton", "triton") if "triton" in here else ("compiler", "compiler")
        pairs = (
            (f"{kernel.name} source_hash", record.source_hash, kernel.source_hash),
            (what, then.get(key), here.get(key)),
        )
        parts = [
            f"{what} {was}, but this machine has {is_}" for what, was, is_ in pairs if was != is_
        ]
        if parts:
            raise TunefaError(f"it was measured with {'; with '.join(parts)}")
        return kernel

    def why_not(self, record: Record) -> str | None:
        """Why a record cannot be used on this machine, in words; None if it can."""
        try:
            self.kernel(record)
        except TunefaError as error:
            return str(error)
        return None


@dataclass(frozen=True)
class LockFile:
    """The records of a lock file, and the errors for calls that it does not serve."""

    path: Path
    records: tuple[Record, ...]

    @classmethod
    def read(cls, path: Path) -> LockFile:
        """Reads the lock file at `path`. Raises TunefaError, with file and line, if that fails."""
        return cls(path, tuple(store.read(path)))

    @classmethod
    def of_environment(cls) -> LockFile | None:
        """The lock file that TUNEFA_FROZEN names; None where it is unset or empty.

        Raises TunefaError as `read` does, naming the variable too.
        """
        name = os.environ.get(VARIABLE)
        try:
            return cls.read(Path(name)) if name else None
        except TunefaError as error:
            raise TunefaError(f"{VARIABLE}: {error}") from None

    def exact(self, workload: Workload, target: Target) -> Record:
        """The best record that was measured for the workload on the target's device.

        It does not depend on what is installed, so it is the same for every rank. Raises
        TunefaError if there is none.
        """
        exact = [
            record for record in measured_on(self.records, target) if record.workload == workload
        ]
        if not exact:
            nearest, device_name = self._nearest(workload, target), target.device.name
            raise TunefaError(
                f"{self._this} has no record measured for {workload} on {device_name}: {nearest}; "
                f"add one on such a device with: {self._command(workload)}"
            )
        return _current(exact)[0]

    def kernel(self, record: Record, arch: Arch, installed: Installed) -> Kernel:
        """The kernel of a record of this file.

        Raises TunefaError if the kernel is not installed, is not the one that was measured, or
        cannot run the record's config.
        """
        try:
            kernel = installed.kernel(record)
        except TunefaError as error:
            raise self.cannot(record, str(error)) from None
        why = kernel.why_not(record.workload, arch)
        if why is None and (rule := kernel.refusal(record.config, record.workload, arch)):
            why = f"the space refuses its config {record.config}: {rule}"
        if why is not None:
            raise self.cannot(record, why)
        return kernel

    def cannot(self, record: Record, why: str) -> TunefaError:
        """The error for a record of this file that cannot be used."""
        return TunefaError(
            f"{self._this} has a record for {record.workload} on {record.device} that cannot be "
            f"used: {why}; install the same versions on every rank, or measure again with: "
            f"{self._command(record.workload)}"
        )

    def serves_no(self, what: str, why: str) -> TunefaError:
        """The error for a call that no record can serve."""
        return TunefaError(
            f"{self._this} does not serve this {what}: {why}; a frozen process uses nothing else"
        )

    def excludes(self, path: Path) -> TunefaError:
        """The error for another file of records, which a frozen process must not load."""
        return TunefaError(
            f"{self._this} is the only file that it may use: do not load {path}, or do not freeze "
            f"(unset {VARIABLE}, or load without frozen=True)"
        )

    def is_at(self, path: Path) -> bool:
        """Whether `path` is this file."""
        return os.path.realpath(path) == os.path.realpath(self.path)

    @property
    def _this(self) -> str:
        return f"{self.path}, which this process is frozen to,"

    def _nearest(self, workload: Workload, target: Target) -> str:
        records = lookup.by_trust(self.records, workload, target) or sorted(
            self.records, key=lambda record: lookup.distance(record.workload, workload)
        )
        if not records:
            return "it has no records at all"
        on = records[0].device or f"{records[0].arch}, predicted"
        return f"its nearest is for {records[0].workload} on {on}"

    def _command(self, workload: Workload) -> str:
        """The command that adds the workload to the file.

        It imports the file first, so that records of other machines are kept.
        """
        path = shlex.quote(str(self.path))
        return (
            f"tunefa import {path} && tunefa search -w {workload} && tunefa export {path} --frozen"
        )


class FreezeState:
    """The lock file that a process is frozen to, if any. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frozen: LockFile | None = None
        self._asked = False

    @property
    def file(self) -> LockFile | None:
        """The lock file; None if the process is not frozen. The environment is read once.

        Raises TunefaError, each time, for a file that cannot be read.
        """
        if not self._asked:
            with self._lock:
                if not self._asked:
                    self._frozen, self._asked = LockFile.of_environment(), True
        return self._frozen

    def to(self, path: Path) -> None:
        """Freezes to a file, or reads it again. Raises TunefaError if frozen to another file."""
        self.admit(path, frozen=True)
        self._frozen = LockFile.read(path)

    def admit(self, path: Path, frozen: bool = False) -> None:
        """Raises TunefaError if the process is frozen and must not load `path`."""
        file = self.file
        if file is not None and not (frozen and file.is_at(path)):
            raise file.excludes(path)


def measured_on(records: Sequence[Record], target: Target) -> list[Record]:
    """The records that were measured on a device of the target's name."""
    # Names are compared exactly: a part of a chip (MIG) and its PCIe board are other devices.
    place = target.arch.name, target.device.name
    return [each for each in records if (each.arch, each.device) == place]


def records_to_lock(records: Sequence[Record], installed: Installed) -> list[Record]:
    """The records for a lock file: the best measured one of each workload and device.

    Records that can be used with what is installed here are preferred. Others are not left out, as
    the file may be for another machine. The result is sorted by arch, device and workload.
    """
    served = [record for record in records if installed.why_not(record) is None]
    best: dict[tuple[str, str, str], Record] = {}
    for record in [*_current(served), *_current(records)]:
        if record.device is not None:
            key = (record.arch, record.device, str(record.workload))
            best.setdefault(key, record)
    return [best[key] for key in sorted(best)]


def _current(records: Sequence[Record]) -> list[Record]:
    """The records that no later one supersedes, the best first, for records in any order."""
    return store.current(sorted(records, key=lambda record: record.rank))
