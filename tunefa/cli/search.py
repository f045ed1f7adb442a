"""`tunefa search`: finds the fastest config for a workload."""

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
"""Enough time for two kernels to compile and race."""
NPU_BUDGET = "150s"
"""For an NPU, whose compiler takes ten times as long for a tile that does not fit."""


@click.command()
@workload_options
@click.option("--budget", metavar="B", help=(
    "Time for the whole search (60s, 2m), or number of trials (200).  "
    f"[default: {DEFAULT_BUDGET}, for an NPU {NPU_BUDGET}]"))  # fmt: skip
@click.option("--mode", type=click.Choice(MODES), help=(
    "How calls are made when they are timed. eager: PyTorch's ordinary calls, which cost the "
    "longer of device and host time. graph: replayed in a CUDA graph, which costs the device "
    "time.  [default: eager]"))  # fmt: skip
@click.option(
    "--kernel",
    "names",
    multiple=True,
    metavar="NAME",
    help="Search only this kernel; may be repeated.",
)
@click.option("--strategy", default="auto", show_default=True, metavar="NAME",
              help=f"Strategy that proposes configs: {', '.join(strategies.names())}.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE",
              help="Also write the record to a file; its suffix says the format.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, metavar="N",
              help="Seed of random numbers: the same seed gives the same proposals.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1), metavar="N",
              help="Number of processes that compile.  [default: one per core]")  # fmt: skip
@click.option("--estimate", is_flag=True,
              help="For an NPU: formulas say which configs fit, not the compiler.")  # fmt: skip
@click.option("--resume", is_flag=False, flag_value="", metavar="[JOURNAL]",
              help="Continue the newest search of the same workload, chip and kernels, or that "
              "of a journal; its trials count in a budget of trials.")  # fmt: skip
@click.option("--storage", metavar="URL",
              help="Database for the Optuna study, such as sqlite:///study.db.  "
              "[default: a file beside the journal]")  # fmt: skip
@click.option("--replay", type=click.Path(path_type=Path), metavar="FILE",
              help="Answer from the trials in a journal: workload and chip are those of the file, "
              "and nothing is compiled, timed or stored.")  # fmt: skip
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

    On the GPU of this machine, configs are compiled, checked and timed. For another chip, or
    without a GPU, they are compiled for that chip, a cost model predicts their times, and the
    winner is checked in an interpreter; such a record is `predicted`. For a Huawei NPU, the
    compiler says which configs fit (run `tunefa ascend setup` first), and a latency model says how
    long they take; such a record is `modelled`, or `estimated` with --estimate.

    Needs no GPU, but only measures with one. A time budget counts from the start until the record
    is stored. Ctrl-C ends the search and keeps the best config so far; --resume continues it, also
    after a crash.
    """
    # BLAS gets one thread, before numpy is imported here and in the processes that compile:
    # matrices are small, and threads that wait keep the cores busy. On two cores, a proposal takes
    # 44 ms with one thread and 171 ms with two.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    how["budget"] = _budget(selection, how["budget"], how["estimate"], replay is not None)
    if out is not None:
        files.check(out, exports.for_path(out))
    if replay is None:
        request = _compilable(_request(selection, **how), how["names"])
    else:
        if resume is not None or out is not None:
            option = "--out" if resume is None else "--resume"
            raise click.UsageError(
                f"--replay stores nothing that {option} could use: leave out one of them"
            )
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


def _budget(selection: Selection, given: str | None, estimate: bool, replayed: bool) -> Budget:
    """The budget, whose seconds count from now. Raises UsageError for --estimate without an NPU."""
    budget = Budget.parse(given or DEFAULT_BUDGET)
    npu = not replayed and isinstance(selection.target.arch, NpuArch)
    if estimate and not npu:
        raise click.UsageError("--estimate is for Huawei's NPUs: name one with --arch")
    if npu and given is None:
        return replace(Budget.parse(NPU_BUDGET), start=budget.start)
    return budget


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
    if mode is not None and not selection.present:
        click.echo(
            f"--mode {mode} has no effect: nothing is measured for a chip of another machine.",
            err=True,
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
    """Leaves out the kernels that cannot be compiled here, and says so on standard error.

    Raises TunefaError where one of them was asked for by name, or no kernel is left.
    """
    if request.estimate:
        return request
    lacking = languages.without_compiler(request.kernels, request.target.arch)
    left = tuple(kernel for kernel in request.kernels if kernel.name not in lacking)
    for name, why in lacking.items():
        if name in named or not left:
            formulas = isinstance(request.target.arch, NpuArch)
            raise TunefaError(f"{why}, or use --estimate to go on without it" if formulas else why)
        click.echo(f"{name} is left out: {why}", err=True)
    return replace(request, kernels=left)


def _replaying(path: Path, selection: Selection, names: tuple[str, ...], **how: Any) -> Request:
    """The request to search a recorded landscape: its workload, its chip and its trials."""
    recorded = landscape.load(path)
    chosen = replaying.selection(recorded, selection)
    kernel_names = replaying.kernel_names(recorded, names)
    request = _request(chosen, names=kernel_names, **how)
    return replace(request, measured=recorded.measured, target=recorded.target, replay=recorded)


def _continuing(request: Request, named: Path | None) -> Request:
    """Adds the journal to continue, if there is one, and says which on standard error."""
    from tunefa.search import resume

    found = resume.find(request, named)
    click.echo(found.message, err=True)
    return replace(request, resume=found.path)


def _run(request: Request) -> Result:
    import optuna

    from tunefa.cli.reports.progress import Reporter
    from tunefa.search import run as search

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would print each trial
    with Reporter() as reporter:
        # Replays do not use the store, so that the same file always gives the same search.
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
    """Returns the next command, with a label that says what it is for."""
    if result.request.replay is not None:
        asked = ["--device", result.request.target.device.name, "-w", str(result.request.workload)]
        return "Next: measure on the chip itself", text.command("tunefa", "search", *asked)
    problem = [*selection.chip_words, "-w", str(result.request.workload)]
    if result.interrupted:
        line = text.command("tunefa", "search", *problem, *_given(), "--resume")
        return "Next: continue the search", line
    if result.record is None:
        if not result.finished:
            return "Next: see which rules refuse configs", text.command("tunefa", "space", *problem)
        config = text.config_text(result.finished[0].trial.config, ",")
        line = text.command("tunefa", "explain", *problem, "-c", config)
        return "Next: see what is wrong with the first config", line
    if out is not None and hasattr(exports.get(exports.for_path(out)), "load"):
        return "Next: on the machine that will use it", text.command("tunefa", "import", str(out))
    line = text.command("tunefa", "export", "best.yaml", *problem)
    return "Next: export it for the machine that will use it", line


def _given() -> list[str]:
    """The given options of this command, except those of workload and chip, and `--resume`."""
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
