"""The commands that reports end with: what fits the situation, in words that can be run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tunefa.cli import targets
from tunefa.cli.reports import text
from tunefa.cli.workload_options import SELECTING, Selection
from tunefa.errors import TunefaError
from tunefa.store import exports
from tunefa.store.record import Record

if TYPE_CHECKING:  # it brings what only a search needs: numpy, the process pool
    from tunefa.search.request import Result

NextStep = tuple[str, str]
"""A label that says what a command is for, and the command."""


def after_search(results: Sequence[Result], selection: Selection, out: Path | None) -> NextStep:
    """Returns what to do with the results of the searches of one command, of which only the last
    may be interrupted; `out` is the file that --out names."""
    last, found = results[-1], [result for result in results if result.record is not None]
    if last.request.replay is not None:
        device, workload = last.request.target.device.name, str(last.request.workload)
        line = text.command("tunefa", "search", "--device", device, "-w", workload)
        return "Next: measure on the chip itself", line
    if last.interrupted:
        return _continued(last, selection)
    if not found:
        return _about_failures(results[0], selection)
    if out is not None and is_importable(out):
        return "Next: on the machine that will use it", text.command("tunefa", "import", str(out))
    words = [word for each in found for word in ("-w", str(each.request.workload))]
    line = text.command("tunefa", "export", "best.yaml", *selection.chip_words, *words)
    it = "it" if len(found) == 1 else "them"
    if all(each.record is not None and each.record.device is not None for each in found):
        return f"Next: this machine uses {it} already; export {it} for another one", line
    return f"Next: export {it} for the machine that will use {it}", line


def _continued(result: Result, selection: Selection) -> NextStep:
    """The command that continues an interrupted search."""
    rest = given(lambda name: name not in {*SELECTING, "resume", "is_step"})
    words = [*selection.chip_words, "-w", str(result.request.workload), *rest, "--resume"]
    if click.get_current_context().params["resume"]:  # the journal knows workload and chip
        words = [*rest, "--resume", str(result.journal)]
    return "Next: continue the search", text.command("tunefa", "search", *words)


def _about_failures(result: Result, selection: Selection) -> NextStep:
    """The command that says why a search has found nothing."""
    problem = [*selection.chip_words, "-w", str(result.request.workload)]
    if not result.finished:
        return "Next: see which rules refuse configs", text.command("tunefa", "space", *problem)
    first = result.finished[0]
    words = [*problem, "-c", text.config_text(first.trial.config, ","), "--kernel", first.kernel]
    line = text.command("tunefa", "explain", *words)
    return "Next: see what is wrong with the first config", line


def renewable(drifted: Sequence[Record]) -> list[Record]:
    """Returns the records that can be renewed on this machine: those that were measured on its
    device; if there are none, those that were predicted, for which any machine will do."""
    there: set[str] = set()
    with contextlib.suppress(TunefaError):  # a device of an arch that tunefa does not know
        there = {targets.described(device).device.name for device in targets.seen()[:1]}
    measured = [record for record in drifted if record.device in there]
    return measured or [record for record in drifted if record.device is None]


def export() -> NextStep:
    """Returns the export of the records that the given options select."""
    line = text.command("tunefa", "export", "best.yaml", *given((*SELECTING, "last").__contains__))
    return "Next: export them for another machine", line


def first_search() -> NextStep:
    """Returns the search for what the given options name, where no record matches them."""
    asked = given(SELECTING.__contains__)
    if not {"-w", "--seqlen"}.intersection(asked):
        asked += ["--seqlen", "8192"]
    if "--deterministic" in asked and "--backward" not in asked:
        asked.append("--backward")
    if not {"--arch", "--device"}.intersection(asked) and not targets.seen():
        asked = ["--arch", targets.DEFAULT_ARCH, *asked]
    return "Next: search, for example", text.command("tunefa", "search", *asked)


def is_importable(path: Path) -> bool:
    """Whether `tunefa import` can read a file of this name, by its suffix."""
    try:
        return exports.can_be_read(exports.for_path(path))
    except TunefaError:
        return False


def given(wanted: Callable[[str], bool]) -> list[str]:
    """Returns the options of the running command that were given on its command line.

    `wanted` says which, by click's name of an option. Passwords in them are hidden.
    """
    context = click.get_current_context()
    words: list[str] = []
    for option in context.command.params:
        name = option.name or ""
        if not wanted(name) or not isinstance(option, click.Option):
            continue
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        if isinstance(value, bool):
            words.append(option.opts[0] if value else option.secondary_opts[0])
            continue
        values = value if isinstance(value, tuple) else (value,)
        words += [word for each in values for word in (option.opts[0], _spelled(name, each))]
    return words


def _spelled(name: str, value: Any) -> str:
    """The value of an option, as a user writes it."""
    if name == "window_left":  # --window counts the query's own key too
        return str(value + 1)
    if name != "storage":
        return str(value)
    from tunefa.search.database import without_password  # it brings Optuna

    return without_password(str(value))
