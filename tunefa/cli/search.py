"""`tunefa search`: the fastest config for a workload."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tunefa.cli import files
from tunefa.cli import replay as replaying
from tunefa.cli.exit_codes import INTERRUPTED, NOTHING_VALID
from tunefa.cli.reports import text
from tunefa.cli.workload_options import SELECTING, Selection, workload_options
from tunefa.compile import languages
from tunefa.errors import TunefaError, unknown
from tunefa.search import strategies
from tunefa.search.budget import Budget
from tunefa.spec import kernel as kernels
from tunefa.spec.arch import NpuArch
from tunefa.spec.trial import MODES, Mode
from tunefa.store import exports, landscape
from tunefa.store import results as store

if TYPE_CHECKING:  # it brings what only a search needs: numpy, the process pool
    from tunefa.search.request import Request, Result

DEFAULT_BUDGET = "75s"
"""Two kernels compile and race in it, and without a GPU it ends in under a minute."""
NPU_BUDGET = "150s"
"""Of an NPU: a tile that its compiler refuses takes ten times as long as one that fits."""


@click.command()
@workload_options
@click.option("--budget", metavar="B", help=(
    "Time for all of it (60s, 2m) or number of trials (200).  "
    f"[default: {DEFAULT_BUDGET}, for an NPU {NPU_BUDGET}]"))  # fmt: skip
@click.option("--mode", type=click.Choice(MODES), help=(
    "How calls are made, and so timed: eager, the longer of device and host time, or replayed in a "
    "CUDA graph.  [default: eager]"))  # fmt: skip
@click.option("--kernel", "names", multiple=True, metavar="NAME", help="Only this one; repeatable.")
@click.option("--strategy", default="auto", show_default=True, metavar="NAME",
              help=f"What proposes configs: {', '.join(strategies.names())}.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE",
              help="Also write the record to a file, in the format of its suffix.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, metavar="N",
              help="Same seed, same proposals.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1), metavar="N",
              help="Processes that compile.  [default: one per core]")  # fmt: skip
@click.option("--estimate", is_flag=True,
              help="Of an NPU: formulas in place of its compiler say what fits.")  # fmt: skip
@click.option("--resume", is_flag=False, flag_value="", metavar="[JOURNAL]",
              help="Go on with the newest search of the same question, or the one of a journal: "
              "its trials are not repeated, and count for a budget of trials.")  # fmt: skip
@click.option("--storage", metavar="URL",
              help="Database for the Optuna study, as sqlite:///study.db.  "
              "[default: a file beside the journal]")  # fmt: skip
@click.option("--replay", type=click.Path(path_type=Path), metavar="FILE",
              help="Search what a journal recorded instead: workload and chip are the file's, "
              "nothing is compiled, timed or stored.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
def command(
    selection: Selection,
    out: Path | None,
    resume: str | None,
    replay: Path | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Find the fastest config for a workload and keep it as a record.

    On the GPU of this machine candidates are checked and timed. For another chip, or where there is
    no GPU, they are compiled for it, the winner's results are checked in an interpreter, and the
    times are a model's: such a record says `predicted`. For an NPU of Huawei, its compiler says
    what fits, after `tunefa ascend setup`, and a law how long it takes: such a record says
    `modelled`, or `estimated` with --estimate.

    Needs no GPU, but measures only with one. A time budget counts from the start to the stored
    record. Ctrl-C ends it early and keeps the best so far; --resume goes on from there, and from a
    crash.
    """
    # Before numpy is imported, here and in the processes that compile: matrices are small, and the
    # threads of BLAS wait for each other by spinning, on cores that compile. On two cores an ask
    # takes 44 ms with one thread and 171 with two.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    budget = Budget.parse(how["budget"] or DEFAULT_BUDGET)  # its seconds begin
    npu = replay is None and isinstance(selection.target.arch, NpuArch)
    if npu and how["budget"] is None:
        budget = replace(Budget.parse(NPU_BUDGET), start=budget.start)
    how["budget"] = budget
    if how["estimate"] and not npu:
        raise click.UsageError("--estimate is for NPUs of Huawei: name one with --arch")
    if out is not None:
        files.check(out, exports.for_path(out))
    if replay is None:
        request = _compilable(_request(selection, **how), how["names"])
    else:
        if resume is not None or out is not None:
            option = "--out" if resume is None else "--resume"
            raise click.UsageError(f"--replay keeps nothing that {option} could use: leave out one")
        request = _replaying(replay, selection, **how)
    if resume is not None:
        request = _continuing(request, Path(resume) if resume else None)
    result = _run(request)
    if out is not None and result.record is not None:
        content = exports.get(exports.for_path(out)).dump([result.record])
        files.write(out, content, exports.for_path(out))
    _report(result, selection, out, as_json)
    if result.interrupted:
        sys.exit(INTERRUPTED)
    if result.record is None:
        sys.exit(NOTHING_VALID)


def _request(
    selection: Selection,
    budget: Budget,
    names: tuple[str, ...],
    strategy: str,
    mode: Mode | None,
    **rest: Any,
) -> Request:
    """Everything that can be wrong about the question is found here, before anything starts."""
    workload = selection.workload
    if strategy not in strategies.names():
        raise unknown("strategy", strategy, strategies.names())
    target = selection.target
    if mode is not None and not selection.present:
        click.echo(
            f"--mode {mode} has no effect: a chip that is not here is not measured.", err=True
        )
    serving = tuple(kernels.serving(workload, target.arch, names))
    from tunefa.search.request import Request

    return Request(
        workload=workload,
        target=target,
        measured=selection.present,
        kernels=serving,
        budget=budget,
        strategy=strategy,
        mode=mode or "eager",
        **rest,
    )


def _compilable(request: Request, named: Sequence[str]) -> Request:
    """The request without the kernels that cannot be compiled here; says which on stderr.

    Raises TunefaError where one of them was asked for by name, or none is left.
    """
    if request.estimate:
        return request
    lacking = languages.lacking(request.kernels, request.target.arch)
    left = tuple(kernel for kernel in request.kernels if kernel.name not in lacking)
    for name, why in lacking.items():
        if name in named or not left:
            formulas = isinstance(request.target.arch, NpuArch)
            raise TunefaError(f"{why}, or go on without it: --estimate" if formulas else why)
        click.echo(f"{name} is left out: {why}", err=True)
    return replace(request, kernels=left)


def _replaying(path: Path, selection: Selection, names: tuple[str, ...], **how: Any) -> Request:
    """The request whose question and answers are those of a landscape."""
    recorded = landscape.load(path)
    chosen = replaying.selection(recorded, selection)
    kernel_names = replaying.kernel_names(recorded, names)
    request = _request(chosen, names=kernel_names, **how)
    return replace(request, measured=recorded.measured, target=recorded.target, replay=recorded)


def _continuing(request: Request, named: Path | None) -> Request:
    """The request with the journal that it goes on with, if one fits; says which on stderr."""
    from tunefa.search import resume

    found = resume.find(request, named)
    click.echo(found.message, err=True)
    return replace(request, resume=found.path)


def _run(request: Request) -> Result:
    import optuna

    from tunefa.cli.reports.progress import Reporter
    from tunefa.search import run as search

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it says each trial and study
    with Reporter() as reporter:
        # A store would put in what this user knows: the same file is to give the same search.
        known = store.default_store() if request.replay is None else store.Store([])
        return search.search(request, known, reporter)


def _report(result: Result, selection: Selection, out: Path | None, as_json: bool) -> None:
    from tunefa.cli.reports import search as reports

    if as_json:
        text.emit_json(reports.to_data(result, out))
        return
    console = text.console()
    reports.show(result, out if result.record else None, console)
    text.print_command(console, *_next(result, selection, out))


def _next(result: Result, selection: Selection, out: Path | None) -> tuple[str, str]:
    """(what for, the exact command) to go on with."""
    if result.request.replay is not None:
        asked = ["--device", result.request.target.device.name, "-w", str(result.request.workload)]
        return "Next: search the chip itself", text.command("tunefa", "search", *asked)
    problem = [*selection.chip_words, "-w", str(result.request.workload)]
    if result.interrupted:
        line = text.command("tunefa", "search", *problem, *_given(), "--resume")
        return "Next: go on where it was interrupted", line
    if result.record is None:
        if not result.finished:
            return "Next: see what the rules leave", text.command("tunefa", "space", *problem)
        config = text.config_text(result.finished[0].trial.config, ",")
        line = text.command("tunefa", "explain", *problem, "-c", config)
        return "Next: see what is wrong with the first config", line
    if out is not None and hasattr(exports.get(exports.for_path(out)), "load"):
        return "Next: on the machine it is for", text.command("tunefa", "import", str(out))
    line = text.command("tunefa", "export", "best.yaml", *problem)
    return "Next: take it to the machine it is for", line


def _given() -> list[str]:
    """The options of this command that were given, but those of workload, chip and `--resume`."""
    from tunefa.search.study import without_password

    context = click.get_current_context()
    words: list[str] = []
    for option in context.command.params:
        name = option.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not given or name in {*SELECTING, "resume"}:
            continue
        value = context.params[name]
        if isinstance(value, bool):
            words.append(option.opts[0])
        else:
            values = value if isinstance(value, tuple) else (value,)
            shown = [without_password(str(each)) for each in values]
            words += [word for each in shown for word in (option.opts[0], each)]
    return words
