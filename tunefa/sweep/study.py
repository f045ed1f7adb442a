"""The study of a sweep in Optuna's storage, which all its workers share.

A slice, the search of one workload for some time, is a trial of the study. A worker claims a
workload by making a running trial of it. The storage puts trials in one order for all, so of two
workers that claim the same workload the first has it. Nobody else decides who does what: a worker
that is started anywhere with the address of the storage takes part.

Any of Optuna's tools can look at the study while it runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from tunefa import assets
from tunefa.errors import TunefaError
from tunefa.search import database
from tunefa.sweep import store_lock
from tunefa.sweep.file_lock import FileLock
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.plan import Plan
from tunefa.sweep.slices import Slice

PREFIX = "tunefa-sweep-"
_REFUSALS = (
    *(OSError, optuna.exceptions.StorageInternalError),
    *(optuna.exceptions.DuplicatedStudyError, ValueError, KeyError),
)
FINISHED = (TrialState.COMPLETE, TrialState.FAIL)


def folder() -> Path:
    """Returns the folder of this user's sweeps."""
    return store_lock.path().parent


def address(storage: str | None, name: str) -> str:
    """Returns where the study is: a database's URL as it is, or the path of a file."""
    return storage if storage is not None else str(folder() / f"{name}.log")


def opened(place: str) -> BaseStorage:
    """Opens the storage at a database's URL or a file's path; a file is made.

    Raises TunefaError if it cannot be reached, or holds something else.
    """
    if "://" in place:
        return database.opened(place)
    path = Path(place)
    if path.parent != folder() and not path.parent.is_dir():
        raise TunefaError(f"{path} cannot be made: there is no folder {path.parent}")
    with errors(place):
        assets.make_folder(path.parent)
        try:
            return JournalStorage(JournalFileBackend(place, FileLock(path)))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise TunefaError(
                f"{path} is no study of Optuna ({error}): name another --storage"
            ) from error


@contextlib.contextmanager
def errors(place: str) -> Iterator[None]:
    """Turns the errors of reading and writing a storage into a TunefaError."""
    try:
        yield
    except optuna.exceptions.UpdateFinishedTrialError:
        raise
    except database.errors(*_REFUSALS) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        shown = database.without_password(place)
        raise TunefaError(
            f"the sweep's storage {shown} cannot be used: {why.replace(place, shown)}: make it "
            "reachable or free space, then continue with --resume"
        ) from error


def names(storage: BaseStorage, place: str, digest: str = "") -> list[str]:
    """Returns the names of the sweeps in a storage whose plan has this digest, the newest first."""
    with errors(place):
        found = [study.study_name for study in storage.get_all_studies()]
    return sorted((n for n in found if n.startswith(PREFIX) and n.endswith(digest)), reverse=True)


def newest(storage: str | None, digest: str) -> SweepStudy | None:
    """Returns the newest sweep whose plan has this digest, any if it is empty; None without one.

    It is looked for in the storage, or else among the files of this user's sweeps.
    """
    if storage is not None:
        found = names(opened(storage), storage, digest)
        return SweepStudy.found(storage, found[0]) if found else None
    paths = sorted(folder().glob(f"{PREFIX}*{digest}.log"), reverse=True)
    return SweepStudy.found(str(paths[0]), paths[0].stem) if paths else None


def new_name(plan: Plan) -> str:
    """Returns the name of a new sweep: with the time, then the digest of what it is asked."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%f")
    return f"{PREFIX}{stamp}-{plan.digest}"


@dataclass(frozen=True)
class SweepStudy:
    """The study of one sweep. Every method raises TunefaError when the storage fails."""

    storage: BaseStorage
    place: str
    name: str
    id: int

    @classmethod
    def made(cls, place: str, plan: Plan, name: str) -> SweepStudy:
        """Makes the study of a new sweep."""
        storage = opened(place)
        with errors(place):
            made = storage.create_new_study([StudyDirection.MINIMIZE], name)
            storage.set_study_user_attr(made, "plan", plan.to_data())
        return cls(storage, place, name, made)

    @classmethod
    def found(cls, place: str, name: str) -> SweepStudy:
        """Opens the study of a sweep."""
        storage = opened(place)
        with errors(place):
            return cls(storage, place, name, storage.get_study_id_from_name(name))

    @property
    def shown(self) -> str:
        """The address of its storage, without a password."""
        return database.without_password(self.place)

    @property
    def plan(self) -> Plan:
        """The plan of the sweep. Raises TunefaError if another tunefa wrote it."""
        try:
            return Plan.from_data(self.notes["plan"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TunefaError(
                f"the study {self.name} holds no plan that this tunefa can read ({error}): begin "
                "a new sweep"
            ) from error

    @property
    def notes(self) -> Mapping[str, Any]:
        """The notes that the sweep's processes leave for each other, by name."""
        with errors(self.place):
            found: Mapping[str, Any] = self.storage.get_study_user_attrs(self.id)
        return found

    def note(self, name: str, value: Any) -> None:
        """Tells the other processes something."""
        with errors(self.place):
            self.storage.set_study_user_attr(self.id, name, value)

    def slices(self) -> list[Slice]:
        """Returns all slices, in the order in which they were claimed."""
        with errors(self.place):
            trials = self.storage.get_all_trials(self.id, deepcopy=False)
        return [Slice.of(trial) for trial in trials]

    def claim(self, key: str, amount: float, who: HostProcess) -> Slice | None:
        """Claims the workload with that key for a slice; None if another worker was first."""
        attrs = {"item": key, "amount": amount, "worker": who.to_data(), "began": time.time()}
        template = create_trial(state=TrialState.RUNNING, value=None, user_attrs=attrs)
        with errors(self.place):
            made = self.storage.create_new_trial(self.id, template)
        own = next(each for each in self.slices() if each.id == made)
        rivals = [each for each in self.slices() if each.key == key and each.is_running]
        if any(each.number < own.number for each in rivals):
            self.fail(own, "another worker has it", counts=False)
            return None
        return own

    def say(self, part: Slice, name: str, value: Any) -> None:
        """Adds to what is known of a slice that runs; a slice that was ended stays as it is."""
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError), errors(self.place):
            self.storage.set_trial_user_attr(part.id, name, value)

    def complete(self, part: Slice, found: Mapping[str, Any]) -> None:
        """Ends a slice with what it has found, of which `best_us` is the trial's value."""
        best_us = found.get("best_us")
        self.say(part, "found", {**found, "ended": time.time()})
        state = TrialState.FAIL if best_us is None else TrialState.COMPLETE
        self._end(part, state, [] if best_us is None else [best_us])

    def fail(self, part: Slice, why: str, counts: bool = True) -> None:
        """Ends a slice that found nothing, or whose worker is lost; `counts` says whether it tells
        something about its workload."""
        self.say(part, "lost", why)
        self.say(part, "counts", counts)
        self._end(part, TrialState.FAIL, [])

    def _end(self, part: Slice, state: TrialState, values: list[float]) -> None:
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError), errors(self.place):
            self.storage.set_trial_state_values(part.id, state, values or None)
