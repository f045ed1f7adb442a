"""A lock file holds the only records that a frozen process uses, so that all ranks run the same
code.

It serves a call only with a record that was measured for exactly its workload and device, and only
if kernel source and compiler are those of the measurement. Every other call is an error. A record
that is marked as unconfirmed (`tunefa export --frozen --unconfirmed`) serves with other compilers
too, if its config compiles.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tunefa.compile.serving import Installed, is_measured_on
from tunefa.errors import TunefaError
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import bundle_file, distances, lookup
from tunefa.store import results as store
from tunefa.store.bundle_file import BundleFile
from tunefa.store.record import Record

VARIABLE = "TUNEFA_FROZEN"
"""The environment variable that names the lock file."""
MARK = "unconfirmed"
"""The key in the provenance of a record in a lock file that says why the record was unconfirmed
where the file was written, and that it serves nevertheless."""


@dataclass(frozen=True)
class LockFile:
    """The records of a lock file, and the errors for calls that it does not serve."""

    path: Path
    records: tuple[Record, ...]
    bundle: BundleFile | None = None
    """The bundle, where the process is frozen to one. Its plans serve then, and no records."""

    @classmethod
    def read(cls, path: Path) -> LockFile:
        """Reads the lock file or bundle at `path`. Raises TunefaError, with file and line, if that
        fails."""
        if bundle_file.is_one(path):
            return cls(path, (), BundleFile(path))
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

    def kernel(self, record: Record, target: Target, installed: Installed) -> tuple[Kernel, str]:
        """The kernel of a record of this file, and the remark that the record needs, if any.

        Raises TunefaError if the kernel is not installed, is not the one that was measured, cannot
        run the record's config, or if the record is unconfirmed here and is not marked so.
        """
        found = installed.serving(record, target)
        if found.state == "refused":
            raise self.cannot(record, f"it was {found.why}")
        if found.state == "unconfirmed" and not record.provenance.get(MARK):
            raise self.cannot(record, f"it was {found.why}", "export it with --unconfirmed")
        return installed.kernel(record.kernel), installed.remark(record)

    def cannot(self, record: Record, why: str, instead: str = "") -> TunefaError:
        """The error for a record of this file that cannot be used; `instead` is another remedy."""
        also = f"{instead}, " if instead else ""
        return TunefaError(
            f"{self._this} has a record for {record.workload} on {record.device} that cannot be "
            f"used: {why}; install the same versions on every rank, {also}or measure again with: "
            f"{self._command(record.workload)}"
        )

    def serves_no(self, what: str, why: str) -> TunefaError:
        """The error for a call that no record can serve."""
        return TunefaError(
            f"{self._this} does not serve this {what}: {why}; a frozen process uses nothing else"
        )

    def excludes(self, path: Path) -> TunefaError:
        """The error for a file of records that a frozen process must not load."""
        if self.is_at(path):
            return TunefaError(f"{self._this} is loaded already: leave out this load")
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
            self.records, key=lambda record: distances.distance(record.workload, workload)
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
        marked = any(record.provenance.get(MARK) for record in self.records)
        return (
            f"tunefa import {path} && tunefa search -w {workload} && tunefa export {path} --frozen"
            f"{' --unconfirmed' if marked else ''}"
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
    return [each for each in records if is_measured_on(each, target)]


@dataclass(frozen=True)
class Locked:
    """The records for a lock file, and those that are left out."""

    records: tuple[Record, ...]
    """One of each arch, device and workload, sorted by these three; the unconfirmed are marked."""
    left_out: tuple[Record, ...]
    """The best record of each arch, device and workload for which none can be written."""


def records_to_lock(
    records: Sequence[Record], installed: Installed, unconfirmed: bool = False
) -> Locked:
    """The records for a lock file: the best measured one of each workload and device that serves.

    Unconfirmed records are written only if `unconfirmed`, and where there is no confirmed one.
    Predicted records are not considered.
    """
    by_state: dict[str, list[Record]] = {"confirmed": [], "unconfirmed": [], "refused": []}
    for record in records:
        if record.device is not None:
            by_state[installed.serving(record).state].append(record)
    best: dict[tuple[str, str, str], Record] = {}
    rest: dict[tuple[str, str, str], Record] = {}
    for state, those in by_state.items():
        is_written = state == "confirmed" or (state == "unconfirmed" and unconfirmed)
        for record in _current(those):
            if store.place(record) not in best:
                (best if is_written else rest).setdefault(store.place(record), record)
    marked = {key: _marked(record, installed.serving(record).why) for key, record in best.items()}
    written, left_out = (tuple(each[key] for key in sorted(each)) for each in (marked, rest))
    return Locked(written, left_out)


def _marked(record: Record, why: str) -> Record:
    """The record as a lock file holds it: marked if `why` says why it is unconfirmed."""
    made = {key: value for key, value in record.provenance.items() if key != MARK}
    return replace(record, provenance={**made, MARK: why} if why else made)


def _current(records: Sequence[Record]) -> list[Record]:
    """The records that no later one supersedes, the best first, for records in any order."""
    return store.current(sorted(records, key=lambda record: record.rank))
