"""The requests of `tunefa search`: for its options, for a recorded landscape, and for a journal."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tunefa.cli import each_workload, looked_up_notes, replay, targets
from tunefa.cli.cleaned import cleaned
from tunefa.cli.workload_options import Selection
from tunefa.errors import TunefaError, unknown
from tunefa.search import strategies
from tunefa.search.budget import Budget
from tunefa.spec import kernel as kernels
from tunefa.spec.trial import Mode
from tunefa.store import landscape

if TYPE_CHECKING:  # it brings what only a search needs: numpy, the process pool
    from tunefa.search.request import Request


def of_each(
    parts: Sequence[Selection], names: tuple[str, ...], mode: Mode | None, **how: Any
) -> list[Request]:
    """Returns the request for each of the workloads, with the kernels that can be compiled here.

    What is left out or has no effect is said on standard error, once. Raises TunefaError for wrong
    names, and where a kernel that was asked for cannot be compiled, or none can.
    """
    if mode is not None and not parts[0].present:
        click.echo(
            f"--mode {mode} has no effect: nothing is measured for a chip of another machine.",
            err=True,
        )
    from tunefa.search import compilable

    requests = []
    notes: dict[str, None] = {}
    for part in parts:
        own = each_workload.of_its_op(names, part.workload)
        asked = _request(part, names=own, mode=mode, **how)
        request, left_out = compilable.only(asked, own)
        requests.append(request)
        notes.update(dict.fromkeys(left_out))
        if note := looked_up_notes.of_search(request.workload, request.target):
            notes[note] = None
    for line in notes:
        click.echo(cleaned(line), err=True)
    return requests


def _request(
    selection: Selection,
    budget: Budget,
    names: tuple[str, ...],
    strategy: str,
    mode: Mode | None,
    **rest: Any,
) -> Request:
    """Makes the request. Raises TunefaError for wrong names, before anything starts."""
    workload = selection.workload
    if strategy not in strategies.names():
        raise unknown("strategy", strategy, strategies.names())
    target = selection.target
    target.check_memory(workload)
    # Libraries compete where configs are timed; `compilable.only` names those that are left out.
    serving = tuple(kernels.serving(workload, target.arch, names, libraries=not names))
    from tunefa.search.request import Request, usual_mode

    return Request(
        workload=workload,
        target=target,
        measured=selection.present,
        kernels=serving,
        budget=budget,
        strategy=strategy,
        mode=mode or usual_mode(workload),
        **rest,
    )


def replaying(path: Path, selection: Selection, names: tuple[str, ...], **how: Any) -> Request:
    """Returns the request to search a recorded landscape: its workload, its chip and its trials.

    Raises TunefaError where the options say otherwise.
    """
    recorded = landscape.load(path)
    chosen = replay.selection(recorded, selection)
    kernel_names = replay.kernel_names(recorded, names)
    request = _request(chosen, names=kernel_names, **how)
    return replace(request, measured=recorded.measured, target=recorded.target, replay=recorded)


def continuing(request: Request, named: Path | None) -> Request:
    """Adds the journal to continue, if there is one, and says which on standard error."""
    from tunefa.search import resume

    found = resume.find(request, named)
    click.echo(cleaned(found.message), err=True)
    return replace(request, resume=found.path)


def completed(selection: Selection, path: Path, how: dict[str, Any]) -> Selection:
    """Returns the selection with the workload and chip of a journal, where none are given.

    The kernels, the mode, the strategy, the seed and `--estimate` come from it too, in `how`, if no
    option gives them. Raises TunefaError if the journal does not say what was searched.
    """
    if selection.texts or selection.models or "seqlen_q" in selection.fields:
        return selection
    from tunefa.search import resume

    asked = resume.asked(path)
    context = click.get_current_context()
    for name, value in {"names": asked.kernels, **asked.options}.items():
        if context.get_parameter_source(name) is ParameterSource.DEFAULT:
            how[name] = value
    if selection.fields:
        mismatch = selection.mismatch(asked)
        if mismatch is not None:
            raise TunefaError(
                f"{path} holds {asked.workload}, which does not match {mismatch}: leave that out"
            )
    selection = replace(selection, texts=(str(asked.workload),), fields={})
    if selection.arch is not None or selection.device is not None or _is_here(asked.device):
        return selection
    return replace(selection, arch=asked.arch, device=asked.device)


def _is_here(device: str) -> bool:
    """Whether the device of this machine, which is the default, has this name."""
    with contextlib.suppress(TunefaError):  # no file describes its arch
        return any(targets.described(seen).device.name == device for seen in targets.seen()[:1])
    return False
