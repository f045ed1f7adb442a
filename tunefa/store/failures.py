"""Failures: every config in this user's journals whose outcome is not `ok`, and the reason."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec.trial import Trial, identity
from tunefa.spec.workload import Workload
from tunefa.store import journal


@dataclass(frozen=True)
class Search:
    """The search that a journal's header describes."""

    journal: Path
    date: str
    """ISO 8601, UTC."""
    workload: Workload
    arch: str
    device: str


@dataclass(frozen=True)
class Failure:
    """A config that failed in a search."""

    search: Search
    kernel: str
    trial: Trial

    @property
    def workload(self) -> Workload:
        """The workload of the search."""
        return self.search.workload

    @property
    def arch(self) -> str:
        """The arch that it was compiled for."""
        return self.search.arch

    @property
    def device(self) -> str:
        """The device of the search."""
        return self.search.device

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data."""
        return {
            "kernel": self.kernel,
            "outcome": self.trial.outcome,
            "reason": self.trial.reason,
            "config": dict(self.trial.config),
            "workload": str(self.workload),
            "arch": self.arch,
            "device": self.device,
            "date": self.search.date,
            "journal": str(self.search.journal),
        }


def failures() -> list[Failure]:
    """Returns all failures, from the newest journal to the oldest; in each, in the order of trials.

    A journal, or the rest of a journal, that cannot be read is left out with a warning.
    """
    return [failure for path in journal.paths() for failure in _of(path)]


def _of(path: Path) -> Iterator[Failure]:
    """Yields the failures in one journal. The last trial of a config counts."""
    last: dict[tuple[str, tuple[object, ...]], Trial] = {}
    search = None
    try:
        search = _search(path)
        for kernel, trial in journal.read(path):
            last[kernel, identity(trial.config)] = trial
    except TunefaError as error:
        what = "rest of a journal" if last else "journal"
        warnings.warn(f"{what} left out: {error}", stacklevel=2)
    if search is not None:
        for (kernel, _), trial in last.items():
            if trial.outcome != "ok":
                yield Failure(search, kernel, trial)


def _search(path: Path) -> Search | None:
    """Returns the search of a journal; None for a replayed search and for an incomplete header.

    Raises TunefaError if the header is not valid.
    """
    header = journal.header(path)
    if not header or header.get("objective") == "replayed":
        return None
    try:
        workload = Workload.parse(header["workload"])
        dates = [made["date"] for made in header["provenance"].values()]
        return Search(path, str(dates[0]), workload, str(header["arch"]), str(header["device"]))
    except (TunefaError, LookupError, TypeError, AttributeError) as error:
        raise TunefaError(f"{path}:1: does not say what was searched: {error}") from error
