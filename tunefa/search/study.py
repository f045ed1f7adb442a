"""The Optuna study of a search: it proposes configs, is told trials, and is kept for Optuna's
tools.

Optuna's samplers ignore failed trials. So a failed trial is told as a completed one, with twice the
time of the slowest success, that violates a constraint. A config that is too large for a memory
violates that memory's constraint, by (required - available) / available.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from tunefa.costmodel.ranking import rank_us
from tunefa.errors import TunefaError
from tunefa.search import database
from tunefa.search.sampler import FAILED, FeasibleSampler
from tunefa.spec.trial import Config, Trial

_PENALTY = 2.0
"""The time of a failed trial, as a multiple of the slowest time."""
_SLOW_US = 1e6
"""The slowest time while no trial has succeeded."""


@dataclass(frozen=True)
class Saved:
    """The storage of a study, and its name there."""

    storage: BaseStorage
    name: str


def beside(journal: Path) -> BaseStorage:
    """Optuna's file beside a search's own journal, whose lock the caller holds.

    A damaged file is renamed and a new one begun: the search's journal has all trials. Raises
    TunefaError if the file cannot be written.
    """
    path = path_beside(journal)
    with _storage_errors(str(path)):
        try:
            return JournalStorage(_OwnFile(_mended(path)))
        except (ValueError, TypeError, LookupError, AttributeError):  # Optuna read a damaged line
            path.replace(path.with_name(f"{path.name}.damaged"))
            return JournalStorage(_OwnFile(str(path)))


class _OwnFile(JournalFileBackend):
    """Optuna's file of one search, which holds the lock of its journal, and so needs no other one.

    It need not survive a power failure, as the search's journal does. Locking it and waiting for
    the disk take 0.5 ms, and Optuna does so for each parameter of each trial.
    """

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Appends lines to the file."""
        lines = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in logs)
        with open(self._file_path, "ab") as file:
            file.write(lines.encode())


def path_beside(journal: Path) -> Path:
    """The path of the study of the search with this journal."""
    return journal.with_name(f"{journal.stem}.optuna.log")


def _mended(path: Path) -> str:
    """Removes what a killed process leaves, half a line and Optuna's lock; returns the path."""
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    if path.exists():
        content = path.read_bytes()
        with open(path, "r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
    return str(path)


class Study:
    """A strategy that is an Optuna study with a `FeasibleSampler`.

    A study that exists is continued: its trials are neither proposed nor told again. Configs that
    an earlier process had in progress when it ended may be proposed once more. Every method raises
    TunefaError when the storage fails.
    """

    def __init__(
        self, sampler: FeasibleSampler, saved: Saved | None = None, memories: Sequence[str] = ()
    ) -> None:
        """Opens the study in `saved`, or in memory. `memories` are those of `SearchProblem`."""
        self._memories = tuple(memories)
        saved = saved or Saved(InMemoryStorage(), "search")
        self._name, self._storage = saved.name, saved.storage
        self._candidates, self._sampler = sampler.candidates, sampler
        self._asked: dict[int, int] = {}
        """The id in the storage of the trial of each config in progress."""
        with _storage_errors(self._name):
            self._study = self._opened(saved, sampler)
            self._id = saved.storage.get_study_id_from_name(self._study.study_name)
            for left in self._study.get_trials(states=(TrialState.RUNNING, TrialState.WAITING)):
                self._study.tell(left.number, state=TrialState.FAIL)
            self._candidates.update(self._study)
            self._count = len(self._study.get_trials(deepcopy=False))

    def _opened(self, saved: Saved, sampler: FeasibleSampler) -> optuna.Study:
        """Opens the study, or another one if its trials are of a space with other values.

        Optuna lets the values of a parameter never change. An older tunefa kept positions.
        """
        known, name = self._candidates.distributions, saved.name
        for number in itertools.count(2):
            study = optuna.create_study(
                storage=saved.storage, study_name=name, sampler=sampler, load_if_exists=True
            )
            held = [trial.distributions for trial in study.get_trials(deepcopy=False)]
            if all(known.get(each) == kind for kinds in held for each, kind in kinds.items()):
                break
            name = f"{saved.name}-{number}"
        return study

    def ask(self, compiled: bool = False) -> Config | None:
        """Returns a config that was neither asked for nor told before; None if none is left, or if
        the sampler finds none worth trying now. If `compiled`, one that needs no compiler."""
        if not self._candidates.untried.any() or self._sampler.is_settled():
            return None
        with _storage_errors(self._name):
            if compiled:
                chosen = self._sampler.choose_compiled()
            else:
                chosen = self._sampler.choose(self._study, self._count)
            if chosen is None:
                return None
            config = self._candidates.configs[chosen]
            self._asked[chosen] = self._made(chosen, TrialState.RUNNING, {"config": _text(config)})
        self._candidates.begin(chosen)
        return config

    def tell(self, trial: Trial) -> None:
        """Learns from the first trial of a feasible config, whether it was proposed here or not.

        A predicted trial that spills counts as slower (`ranking.rank_us`).
        """
        chosen = self._candidates.find(trial.config)
        time_us = rank_us(trial) if trial.outcome == "ok" else None
        if time_us is not None and not 0 < time_us < math.inf:
            time_us = None
        if chosen is None:
            self._sampler.others.append(time_us)
        elif trial.resources is not None:
            self._candidates.note_compiled(chosen)
        if chosen is None or chosen in self._candidates.times:
            return
        constraints, value = self._constraints(trial, time_us), time_us or self._penalty()
        notes = {} if time_us is not None else {"outcome": _outcome(trial)}
        with _storage_errors(self._name):
            if chosen in self._asked:
                self._close(self._asked.pop(chosen), value, constraints, notes)
            else:
                made = {"value": value, "constraints": constraints}
                notes = {"config": _text(trial.config), **notes}
                self._made(chosen, TrialState.COMPLETE, notes, **made)
        self._candidates.end(chosen, value, constraints)

    @property
    def best_us(self) -> float:
        """The least time that it was told; infinite without one."""
        times = (time_us for time_us in self._candidates.times.values() if time_us is not None)
        return min(times, default=math.inf)

    def hoped_gain(self, best_us: float) -> float | None:
        """The part of `best_us` that the most promising untried config is expected to save; 0 if
        none is left or worth trying, None without a model."""
        if not self._candidates.untried.any() or self._sampler.is_settled():
            return 0.0
        gain = self._sampler.hoped_gain(best_us)
        return None if gain is None else -math.expm1(-gain)

    def _made(self, chosen: int, state: TrialState, notes: Mapping[str, str], **told: Any) -> int:
        """Makes a trial in the storage, in one piece: Optuna's own `ask` writes each parameter by
        itself, which takes five times as long. Returns its id there."""
        made = optuna.trial.create_trial(
            state=state,
            params=self._candidates.params(chosen),
            distributions=dict(self._candidates.distributions),
            user_attrs=dict(notes),
            **told,
        )
        self._count += 1
        return self._storage.create_new_trial(self._id, made)

    def _close(
        self, asked: int, value: float, constraints: Mapping[str, float], notes: Mapping[str, str]
    ) -> None:
        trial = optuna.Trial(self._study, asked)
        for name, excess in constraints.items():
            trial.set_constraint(name, excess)
        for name, note in notes.items():
            trial.set_user_attr(name, note)
        self._storage.set_trial_state_values(asked, TrialState.COMPLETE, [value])

    def _constraints(self, trial: Trial, time_us: float | None) -> dict[str, float]:
        """Always of the same names, as Optuna's GP wants it; 0, which violates nothing, where the
        compiler said nothing of a memory."""
        planned = trial.resources.planned if trial.resources else None
        excess = planned.excess if planned else {}
        memories = {name: excess.get(name, 0.0) for name in self._memories}
        failed = time_us is None and max(memories.values(), default=0.0) <= 0.0
        return {FAILED: 1.0 if failed else -1.0, **memories}

    def _penalty(self) -> float:
        times = (time_us for time_us in self._candidates.times.values() if time_us is not None)
        return _PENALTY * max(times, default=_SLOW_US)


@contextlib.contextmanager
def _storage_errors(name: str) -> Iterator[None]:
    """Turns the errors of reading and writing a study into a TunefaError."""
    try:
        yield
    except database.errors(OSError, optuna.exceptions.StorageInternalError) as error:
        why = database.first_line(error)
        raise TunefaError(
            f"the study {name} cannot be written: {why}: free space, or give another --storage"
        ) from error


def _text(config: Config) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())


def _outcome(trial: Trial) -> str:
    return f"{trial.outcome}: {trial.reason}" if trial.reason else trial.outcome
