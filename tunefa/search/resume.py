"""Continues a search that has ended: finds its journal and the trials that are still valid."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefa.costmodel import version
from tunefa.errors import TunefaError
from tunefa.search.request import Request
from tunefa.search.strategy import Strategy
from tunefa.spec.target import Case
from tunefa.spec.trial import MODES, Config, Trial, identity
from tunefa.spec.workload import Workload
from tunefa.store import journal
from tunefa.store.journal import Journal
from tunefa.store.source_hashes import same_code

_QUESTION = ("workload", "arch", "device", "objective", "mode")


@dataclass(frozen=True)
class FoundJournal:
    """The journal to continue, if there is one, and a message for the user about it."""

    path: Path | None
    message: str


@dataclass(frozen=True)
class Asked:
    """The question of the search that wrote a journal, as its header says."""

    workload: Workload
    arch: str
    device: str
    kernels: tuple[str, ...]
    options: Mapping[str, Any]
    """`mode`, `strategy`, `seed` and `estimate`, where the header has them."""


def asked(path: Path) -> Asked:
    """Returns what the search of a journal was asked.

    Raises TunefaError if the journal cannot be read, or does not say it.
    """
    held = journal.header(path)
    try:
        names = {name: held[name] for name in ("workload", "arch", "device", "objective")}
        options: dict[str, Any] = {
            name: held[name] for name in ("mode", "strategy", "seed") if name in held
        }
        if not all(isinstance(each, str) for each in names.values()):
            raise TypeError("its workload, arch, device and objective must be texts")
        workload = Workload.parse(names["workload"])
        if options.get("mode") not in (None, *MODES) or type(options.get("seed", 0)) is not int:
            raise ValueError("its mode or its seed is not valid")
    except (TunefaError, LookupError, TypeError, ValueError) as error:
        raise TunefaError(
            f"{path} does not say what was searched ({error}): give the workload as well"
        ) from error
    options["estimate"] = names["objective"] == "estimated"
    return Asked(workload, names["arch"], names["device"], tuple(_made(held)), options)


def header(request: Request) -> dict[str, Any]:
    """The first line of a journal: the question of the search, and its versions."""
    replay = request.replay
    more = version.provenance(request.objective, request.target.arch.name, request.workload.op)
    made = {
        k.name: replay.provenance[k.name] if replay else {**request.provenance(k), **more}
        for k in request.kernels
    }
    sweep = {} if request.sweep is None else {"sweep": request.sweep}
    return {
        **sweep,
        "workload": str(request.workload),
        "arch": request.target.arch.name,
        "device": request.target.device.name,
        "objective": request.objective,
        "mode": request.serving_mode,
        "strategy": request.strategy,
        "seed": request.seed,
        "provenance": made,
    }


def find(request: Request, named: Path | None = None) -> FoundJournal:
    """Finds the journal to continue: the one that is named, else the newest with the same question.

    There is none where kernels or compilers have changed since, as its trials are not valid then.
    Raises TunefaError if the journal that is named cannot be read; others are left out.
    """
    wanted = header(request)
    if named is not None:
        return _judged(named, wanted)
    damaged = ""
    for path in journal.paths():
        if _asks(path, wanted):
            try:
                found = _judged(path, wanted)
                return FoundJournal(found.path, damaged + found.message)
            except TunefaError as error:
                damaged += f"A journal is left out: {error}.\n"
    same = "this workload, arch, device and kernels"
    if request.measured:
        same += f" in {request.mode} mode"
    return FoundJournal(
        None, f"{damaged}There is no journal of {same} in {journal.folder()}: a new search starts."
    )


def of_sweep(request: Request) -> Path | None:
    """Returns the journal of the request's workload in its sweep; None if there is none whose
    trials are valid."""
    wanted = header(request)
    name = f"-{request.target.arch.name}-{request.workload}-"
    for path in journal.paths():
        with contextlib.suppress(TunefaError):  # a damaged journal is left out
            if name in path.name:
                held = journal.header(path)
                if held.get("sweep") == request.sweep and _why_not(held, wanted) is None:
                    return path
    return None


def _judged(path: Path, wanted: Mapping[str, Any]) -> FoundJournal:
    """The journal if its trials are valid for the search that is wanted, else why they are not."""
    if why := _why_not(journal.header(path), wanted):
        return FoundJournal(None, f"{path} is not continued, and its trials are not used: {why}.")
    count = len({(kernel, identity(trial.config)) for kernel, trial in journal.read(path)})
    plural = "" if count == 1 else "s"
    return FoundJournal(path, f"Continuing {path}: {count} trial{plural} will not be repeated.")


def opened(request: Request) -> Journal:
    """Opens the journal that the request continues, else a new one.

    Raises TunefaError if it cannot be written, or belongs to another search.
    """
    wanted = header(request)
    if request.resume is None:
        return Journal(f"{request.target.arch.name}-{request.workload}", wanted)
    if why := _why_not(journal.header(request.resume), wanted):
        raise TunefaError(f"{request.resume} cannot be continued: {why}")
    return Journal.reopened(request.resume)


def trials(path: Path | None, case: Case) -> list[Trial]:
    """The trials of a case's kernel in a journal whose configs no rule refuses; the last one of
    each config. They may be known configs that a search without a device does not list."""
    if path is None:
        return []
    held = [trial for name, trial in journal.read(path) if name == case.kernel.name]
    last = {identity(trial.config): trial for trial in held}
    return [trial for trial in last.values() if case.refusal(trial.config) is None]


class Continued:
    """A strategy that knows the trials of an earlier search, and proposes other configs."""

    def __init__(self, strategy: Strategy, earlier: Sequence[Trial]) -> None:
        self._strategy = strategy
        self._done = {identity(trial.config) for trial in earlier}
        for trial in earlier:
            strategy.tell(trial)

    def ask(self, compiled: bool = False) -> Config | None:
        """Returns the strategy's next config that was not tried; None if none is left."""
        config = self._strategy.ask(compiled)
        while config is not None and identity(config) in self._done:
            config = self._strategy.ask(compiled)
        return config

    def tell(self, trial: Trial) -> None:
        """Passes the trial on to the strategy."""
        self._strategy.tell(trial)


def _asks(path: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether a journal has the same question; one with a damaged first line has not."""
    try:
        held = journal.header(path)
    except TunefaError:
        return False
    return _other_question(held, wanted) is None


def _other_question(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """The difference of a journal's question from the wanted one, in words; None if equal."""
    if "mode" not in held and held.get("objective") == "measured":  # older journals have no mode
        held = {**held, "mode": "graph"}
    for name in _QUESTION:
        if held.get(name) != wanted[name]:
            return f"its {name} is {held.get(name)}, not {wanted[name]}"
    if _made(held).keys() != wanted["provenance"].keys():
        names = ", ".join(_made(held)) or "none"
        return f"its kernels are {names}, not {', '.join(wanted['provenance'])}"
    return None


def _why_not(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """The reason that a journal's trials are not valid for a search, in words; None if they are."""
    if not held:
        return "its first line is damaged"
    if why := _other_question(held, wanted):
        return why
    for kernel, now in wanted["provenance"].items():
        then = dict(_made(held)[kernel])
        if isinstance(hashed := then.get("source_hash"), str):
            then["source_hash"] = same_code(kernel, hashed)
        for name in now:
            if name != "date" and then.get(name) != now[name]:
                return f"{kernel} has changed: its {name} was {then.get(name)} and is {now[name]}"
        if "learned" in then and "learned" not in now:
            return f"its times are from a learned model ({then['learned']}) that is not there now"
    return None


def _made(held: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The versions that the trials of a journal were made with, by kernel."""
    made = held.get("provenance")
    return made if isinstance(made, dict) else {}
