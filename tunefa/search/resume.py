"""Going on with a search that was ended: which journal, and what of it still holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefa.compile import provenance
from tunefa.errors import TunefaError
from tunefa.search.request import Request
from tunefa.search.strategy import Strategy
from tunefa.spec.space import Feasible
from tunefa.spec.trial import Config, Trial, identity
from tunefa.store import journal
from tunefa.store.journal import Journal
from tunefa.store.source_hashes import same_code

_QUESTION = ("workload", "arch", "device", "objective", "mode")


@dataclass(frozen=True)
class Found:
    """The journal to go on with, if there is one, and a sentence for the user about it."""

    path: Path | None
    said: str


def header(request: Request) -> dict[str, Any]:
    """What a journal says of the search that it belongs to."""
    replay = request.replay
    made = {
        k.name: replay.provenance[k.name] if replay else provenance.of(k) for k in request.kernels
    }
    return {
        "workload": str(request.workload),
        "arch": request.target.arch.name,
        "device": request.target.device.name,
        "objective": request.objective,
        "mode": request.serving_mode,
        "strategy": request.strategy,
        "seed": request.seed,
        "provenance": made,
    }


def find(request: Request, named: Path | None = None) -> Found:
    """The named journal, else the newest that asks the same; none where its trials do not hold.

    Raises TunefaError for a journal that cannot be read.
    """
    wanted = header(request)
    path = named or next((each for each in journal.paths() if _asks(each, wanted)), None)
    if path is None:
        same = "this workload, arch, device and kernels"
        if request.measured:
            same += f" in {request.mode} mode"
        return Found(None, f"No journal of {same} in {journal.folder()}: searching anew.")
    if why := _why_not(journal.header(path), wanted):
        return Found(None, f"{path} is not continued and its trials are not reused: {why}.")
    count = len({(kernel, identity(trial.config)) for kernel, trial in journal.read(path)})
    plural = "" if count == 1 else "s"
    return Found(path, f"Continuing {path}: {count} trial{plural} will not be repeated.")


def opened(request: Request) -> Journal:
    """The journal that the request continues, else a new one.

    Raises TunefaError when it cannot be written, or belongs to another search.
    """
    wanted = header(request)
    if request.resume is None:
        return Journal(f"{request.target.arch.name}-{request.workload}", wanted)
    if why := _why_not(journal.header(request.resume), wanted):
        raise TunefaError(f"{request.resume} cannot be continued: {why}")
    return Journal.reopened(request.resume)


def trials(path: Path | None, kernel: str, feasible: Feasible) -> list[Trial]:
    """A kernel's trials in a journal, each config's last; those that are still feasible."""
    if path is None:
        return []
    allowed = {identity(config) for config in feasible.configs}
    last = {identity(trial.config): trial for name, trial in journal.read(path) if name == kernel}
    return [trial for config, trial in last.items() if config in allowed]


class Continued:
    """A strategy that knows earlier trials and proposes none of their configs."""

    def __init__(self, strategy: Strategy, earlier: Sequence[Trial]) -> None:
        self._strategy = strategy
        self._done = {identity(trial.config) for trial in earlier}
        for trial in earlier:
            strategy.tell(trial)

    def ask(self) -> Config | None:
        """The strategy's next config that was not tried."""
        config = self._strategy.ask()
        while config is not None and identity(config) in self._done:
            config = self._strategy.ask()
        return config

    def tell(self, trial: Trial) -> None:
        """Passes it on."""
        self._strategy.tell(trial)


def _asks(path: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether a journal is of the same question; one without a sound first line is of none."""
    try:
        held = journal.header(path)
    except TunefaError:
        return False
    return _other_question(held, wanted) is None


def _other_question(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    if "mode" not in held and held.get("objective") == "measured":  # from before there were modes
        held = {**held, "mode": "graph"}
    for name in _QUESTION:
        if held.get(name) != wanted[name]:
            return f"its {name} is {held.get(name)}, not {wanted[name]}"
    if _made(held).keys() != wanted["provenance"].keys():
        names = ", ".join(_made(held)) or "none"
        return f"its kernels are {names}, not {', '.join(wanted['provenance'])}"
    return None


def _why_not(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Why the trials of a journal say nothing about a search, in words; None if they do."""
    if not held:
        return "its first line is torn"
    if why := _other_question(held, wanted):
        return why
    for kernel, now in wanted["provenance"].items():
        then = dict(_made(held)[kernel])
        if isinstance(hashed := then.get("source_hash"), str):
            then["source_hash"] = same_code(kernel, hashed)
        for name in now:
            if name != "date" and then.get(name) != now[name]:
                return f"{kernel} has changed: its {name} was {then.get(name)} and is {now[name]}"
    return None


def _made(held: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By kernel, what the trials of a journal were made with."""
    made = held.get("provenance")
    return made if isinstance(made, dict) else {}
