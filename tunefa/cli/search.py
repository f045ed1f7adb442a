"""`tunefa search`: finds the fastest config for a workload."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunefa.cli import each_workload, files, search_requests, traced_workloads, training_step
from tunefa.cli.exit_codes import INTERRUPTED, NOTHING_VALID
from tunefa.cli.reports import next_steps, text
from tunefa.cli.training_step import Step
from tunefa.cli.workers_option import workers_option
from tunefa.cli.workload_options import Selection, workload_options
from tunefa.search import strategies
from tunefa.search.budget import FLOOR_S, Budget
from tunefa.spec.arch import NpuArch
from tunefa.spec.trial import MODES
from tunefa.store import exports
from tunefa.store import results as store

if TYPE_CHECKING:  # it brings what only a search needs: numpy, the process pool
    from tunefa.search.request import Request, Result

DEFAULT_BUDGET = "75s"
"""Enough time for two kernels to compile and race."""
PREDICTED_BUDGET = "50s"
"""For a GPU that is not here: an answer in less than a minute on two cores, as nothing races."""
NPU_BUDGET = "150s"
"""For an NPU, whose compiler takes ten times as long for a tile that does not fit."""


@click.command()
@workload_options
@click.option("--forward-backward", "is_step", is_flag=True, help=(
    "Search both passes of a training step, one after the other, within one budget, and say the "
    "sum of their times. Their kernels are independent, so the best sum is the best of each; each "
    "has a record of its own."))  # fmt: skip
@click.option("--budget", metavar="B", help=(
    "Time for the whole search (60s, 2m), or number of trials (200). The default config of each "
    f"kernel is always tried: a search with less than {FLOOR_S:.0f}s may take {FLOOR_S:.0f}s.  "
    f"[default: {DEFAULT_BUDGET}; for a GPU that is not here {PREDICTED_BUDGET}; for an NPU "
    f"{NPU_BUDGET}]"))  # fmt: skip
@click.option("--mode", type=click.Choice(MODES), help=(
    "How calls are made when they are timed. eager: PyTorch's ordinary calls, which cost the "
    "longer of device and host time. graph: replayed in a CUDA graph, which costs the device "
    "time. step: what a call adds to a CUDA graph with other kernels before and behind it, as in "
    "a captured step of a model.  [default: step for decode, else eager]"))  # fmt: skip
@click.option(
    "--kernel",
    "names",
    multiple=True,
    metavar="NAME",
    help="Search only this kernel; may be repeated.",
)
@click.option("--strategy", default="auto", show_default=True, metavar="NAME",
              help=f"Strategy that proposes configs: {', '.join(strategies.names())}.")  # fmt: skip
@traced_workloads.options
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE",
              help="Also write the record to a file; its suffix says the format.")  # fmt: skip
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),  # what numpy's generators take
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of random numbers: the same seed gives the same proposals.",
)
@workers_option("one per core")
@click.option("--estimate", is_flag=True,
              help="For an NPU: formulas say which configs fit, not the compiler.")  # fmt: skip
@click.option("--resume", is_flag=False, flag_value="", metavar="[JOURNAL]",
              help="Continue the newest search of the same workload, chip and kernels, or that "
              "of a journal; it knows them. Its trials count in a budget of trials.")  # fmt: skip
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
    is_step: bool,
    **how: Any,
) -> None:
    """Find the fastest config for a workload and keep it as a record.

    On the GPU of this machine, configs are compiled, checked and timed. For another chip, or
    without a GPU, they are compiled for that chip, a cost model predicts their times, and the
    winner is checked in an interpreter; such a record is `predicted`. For a Huawei NPU, the
    compiler says which configs fit (run `tunefa ascend setup` first), and a latency model says how
    long they take; such a record is `modelled`, or `estimated` with --estimate.

    Several workloads (-w or --model repeated, a model with several kinds of layers) are searched
    one after the other. Each has a record of its own, and --budget is for each of them.
    --backward searches the gradients, --forward-backward both passes of a training step.

    Needs no GPU, but only measures with one. A time budget counts from the start until the record
    is stored. Ctrl-C ends the search and keeps the best config so far; --resume continues it, also
    after a crash. The exit status is 3 if one of the workloads has no valid config.
    """
    # BLAS gets one thread, before numpy is imported here and in the processes that compile: threads
    # that wait keep the cores busy. On two cores, a proposal takes 44 ms with one, 171 with two.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    selection = traced_workloads.selected(selection, how.pop("workloads"), how.pop("top"))
    if is_step:
        selection = _both_passes(selection, resume, replay)
    if resume and replay is None:
        selection = search_requests.completed(selection, Path(resume), how)
    how["budget"] = _budget(selection, how["budget"], how["estimate"], replay is not None)
    if out is not None:
        files.check(out, exports.for_records(out))
    files.require_current_folder()
    if replay is None:
        parts = each_workload.served(selection, how["names"])
        if resume and len(parts) > 1:
            raise click.UsageError(
                f"--resume {resume} continues one search: give one workload, or --resume alone"
            )
        requests = search_requests.of_each(parts, **how)
    else:
        if resume is not None or out is not None:
            option = "--out" if resume is None else "--resume"
            raise click.UsageError(
                f"--replay stores nothing that {option} could use: leave out one of them"
            )
        parts = [selection]
        requests = [search_requests.replaying(replay, selection, **how)]
    if resume is not None:
        named = Path(resume) if resume else None
        requests = [search_requests.continuing(each, named) for each in requests]
    _search_each(parts, requests, is_step, out, as_json)


def _both_passes(selection: Selection, resume: str | None, replay: Path | None) -> Selection:
    """The selection with both passes of its training steps."""
    if resume is not None or replay is not None:
        option = "--replay" if resume is None else "--resume"
        raise click.UsageError(
            f"{option} is for one search, and --forward-backward makes two: leave out one of them"
        )
    return training_step.selection_of_both(selection)


def _search_each(
    parts: Sequence[Selection],
    requests: Sequence[Request],
    is_step: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Searches the workloads one after the other, and reports each. Ends with the exit status."""
    results: list[Result] = []
    _announce_budget(requests, is_step)
    for place, request in enumerate(requests):
        if request.replay is None:
            each_workload.announce(parts, place)
        if place:  # the budget is for each: the first one's counts from the start of the command
            request = replace(request, budget=replace(request.budget, start=time.monotonic()))
        if is_step:
            request = training_step.of_step(request, requests, results)
        results.append(_run(request))
        records = [result.record for result in results if result.record is not None]
        if out is not None and records:
            content = exports.get(exports.for_path(out)).dump(records)
            files.write(out, content, exports.for_path(out))
        if not as_json:
            _report(results[-1], out)
        if results[-1].interrupted:
            break
    steps = training_step.steps(results) if is_step else []
    if as_json:
        _emit(results, steps, out, several=len(requests) > 1)
    else:
        for step in steps:
            click.echo(f"\n{step}")
        text.print_command(text.console(), *next_steps.after_search(results, parts[0], out))
    if results[-1].interrupted:
        for left in requests[len(results) :]:
            click.echo(f"Not searched: {left.workload}", err=True)
        sys.exit(INTERRUPTED)
    if any(result.record is None for result in results):
        sys.exit(NOTHING_VALID)


def _announce_budget(requests: Sequence[Request], is_step: bool) -> None:
    """Says on standard error how long each of several searches may take."""
    if len(requests) == 1:
        return
    each, count = requests[0].budget, len(requests)
    trials = text.plural(each.trials or 0, "trial")
    share = trials if each.seconds is None else f"{each.seconds:g} s"
    whom = "for both passes of a training step" if is_step else "for each"
    click.echo(f"{count} workloads, one after the other, {share} {whom}", err=True)


def _budget(selection: Selection, given: str | None, estimate: bool, replayed: bool) -> Budget:
    """The budget, whose seconds count from now. Raises UsageError for --estimate without an NPU."""
    measured = replayed or selection.present
    budget = Budget.parse(given or (DEFAULT_BUDGET if measured else PREDICTED_BUDGET))
    npu = not replayed and isinstance(selection.target.arch, NpuArch)
    if estimate and not npu:
        raise click.UsageError("--estimate is for Huawei's NPUs: name one with --arch")
    if npu and given is None:
        return replace(Budget.parse(NPU_BUDGET), start=budget.start)
    return budget


def _run(request: Request) -> Result:
    import optuna

    from tunefa.cli.reports.progress import Reporter
    from tunefa.search import run as search

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would print each trial
    with Reporter() as reporter:
        # Replays do not use the store, so that the same file always gives the same search.
        known = store.default_store() if request.replay is None else store.Store([])
        return search.search(request, known, reporter)


def _emit(
    results: Sequence[Result], steps: Sequence[Step], out: Path | None, several: bool
) -> None:
    """Prints one JSON document: that of the search, or `workloads` with those of several, and the
    `training_steps` of --forward-backward."""
    from tunefa.cli.reports import search as reports

    documents = [reports.to_data(result, out) for result in results]
    of_steps = {"training_steps": [step.to_data() for step in steps]} if steps else {}
    text.emit_json({"workloads": documents, **of_steps} if several else documents[0])


def _report(result: Result, out: Path | None) -> None:
    from tunefa.cli.reports import search as reports

    console = text.console()
    reports.show(result, out if result.record else None, console)
