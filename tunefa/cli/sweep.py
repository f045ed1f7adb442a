"""`tunefa sweep`: finds the fastest configs of many workloads, on all GPUs there are."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunefa.cli import completion, looked_up_notes, sweep_workloads, targets
from tunefa.cli.exit_codes import INTERRUPTED, NOTHING_VALID
from tunefa.cli.workers_option import workers_option
from tunefa.errors import TunefaError
from tunefa.search import strategies
from tunefa.search.budget import Budget
from tunefa.spec import arch_catalog as archs
from tunefa.spec import looked_up
from tunefa.spec.arch import Device, GpuArch
from tunefa.spec.trial import MODES, Mode

if TYPE_CHECKING:  # they bring Optuna
    from tunefa.sweep.outcome import Outcome
    from tunefa.sweep.plan import Plan
    from tunefa.sweep.study import SweepStudy

SECONDS_EACH = 30.0
"""The default budget, for each workload on each chip, divided by the number of workers."""


@click.command()
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@sweep_workloads.options
@click.option("--arch", "names", metavar="LIST", shell_complete=completion.archs, help=(
    "Predict for these chips, without a device: sm80,sm90,sm120 or names such as h100.  "
    "[default: measure on this machine's GPUs]"))  # fmt: skip
@click.option("--device", metavar="NAME", shell_complete=completion.devices,
              help="Measure only on GPUs of this name.")  # fmt: skip
@click.option("--budget", metavar="B", help=(
    "Time of the whole sweep (40s, 10m), or number of trials (2000). With --resume, the time that "
    f"it had counts.  [default: {SECONDS_EACH:.0f} s for each workload, divided by the workers]"
))  # fmt: skip
@click.option("--on", "engine", default="local", show_default=True, metavar="ENGINE", help=(
    "What starts the workers: local (a process for each GPU of this machine), ray (an actor for "
    "each GPU of a cluster) or slurm (a job for each)."))  # fmt: skip
@click.option("--hosts", type=click.IntRange(1), metavar="N", help=(
    "With --on slurm: the number of jobs, each with one GPU.  [default: 1]"))  # fmt: skip
@click.option("--storage", metavar="URL", help=(
    "Where the study lies, which workers of all hosts share: a file on a shared disk, or a "
    "database such as postgresql://host/name.  [default: a file in this machine's store]"
))  # fmt: skip
@click.option("--resume", is_flag=True, help=(
    "Continue the newest sweep of the same workloads, weights, chips and options, which was "
    "interrupted or killed, or whose budget is over. Another budget may be given."
))  # fmt: skip
@click.option("--join", is_flag=True, help=(
    "Add workers to the newest sweep, which runs in another process or on another host. It knows "
    "the workloads."))  # fmt: skip
@click.option("--mode", type=click.Choice(MODES), help=(
    "How calls are made when they are timed, as for `tunefa search`.  [default: step for decode, "
    "else eager]"))  # fmt: skip
@click.option("--kernel", "kernels", multiple=True, metavar="NAME",
              help="Search only this kernel; may be repeated.")  # fmt: skip
@click.option("--strategy", default="auto", show_default=True, metavar="NAME",
              help=f"Strategy that proposes configs: {', '.join(strategies.names())}.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True,
              metavar="N", help="Seed of random numbers.")  # fmt: skip
@workers_option("one per core, without those that GPUs have for themselves")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON document.")
def command(
    path: Path | None, models: Sequence[str], texts: Sequence[str], as_json: bool, **how: Any
) -> None:
    """Find the fastest configs for many workloads on all GPUs there are, within one budget.

    \b
    tunefa sweep workloads.yaml --budget 10m       of `tunefa trace`, or yours
    tunefa sweep --model llama3-8b --batch 1,8 --seqlen 1k..32k --ops fwd,bwd
    tunefa sweep workloads.yaml --arch sm80,sm90   without a GPU: predicted

    The next seconds go to the workload of which the most weighted time is expected to be saved.
    Each record is in the store as soon as its race is over. A sweep may be killed at any time:
    --resume continues it, and no finished trial is lost. A GPU that fails or throttles is put
    aside, and its work goes to another.

    Needs no GPU, but only measures with one.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as for `tunefa search`
    lists = {name: how.pop(name) for name in ("batch", "seqlen", "ops")}
    plan = None
    if how["join"]:
        if path is not None or models or texts or how["resume"]:
            raise click.UsageError("--join takes the workloads from the sweep: leave out others")
    else:
        plan = _plan(sweep_workloads.chosen(path, models, texts, lists), how)
    found = _joined(how) if plan is None else _swept(plan, how)
    _report(found, as_json, joined=plan is None)


def _plan(weights: dict[Any, float], how: dict[str, Any]) -> Plan:
    """Makes the plan. Raises TunefaError for unknown names."""
    from tunefa.spec import kernel
    from tunefa.sweep.plan import Plan

    mode: Mode | None = how["mode"]
    for name in how["kernels"]:
        kernel.load(name)
    if how["strategy"] not in strategies.names():
        raise TunefaError(
            f"there is no strategy {how['strategy']!r}: {', '.join(strategies.names())}"
        )
    device = None if how["device"] is None else _gpu(how["device"])[1].name
    if device is not None and how["names"] is not None:
        raise click.UsageError("--device measures and --arch predicts: leave out one of them")
    names = _targets(how["names"])
    # Kernels that are named may be those of the forward pass.
    few = not how["kernels"] and any(map(looked_up.is_few, weights))
    weights, others = sweep_workloads.merged(weights, _fewest_sms(names, device) if few else 0)
    for note in looked_up_notes.of_several(others):
        click.echo(note, err=True)
    return Plan(weights, names, device, how["kernels"], mode, how["strategy"], how["seed"])


def _fewest_sms(names: Sequence[str], device: str | None) -> int:
    """The fewest SMs of the chips of a sweep. Where the workers are on other hosts, their GPUs are
    taken to have those of an A100 or more."""
    known = names or (() if device is None else (device,))
    if not known and (here := targets.seen()):
        return min(each.sms for each in here)
    return min(_gpu(name)[1].sms for name in known or ("sm80",))


def _targets(text: str | None) -> tuple[str, ...]:
    """Returns the names of the chips to predict for; none where GPUs of workers are measured.

    Raises TunefaError for unknown names, and for NPUs.
    """
    if text is None:
        return ()
    names = tuple(dict.fromkeys(each.strip() for each in text.split(",")))
    for name in names:
        _gpu(name)
    return names


def _gpu(name: str) -> tuple[GpuArch, Device]:
    """Returns the chip of a name. Raises TunefaError for unknown names, and for NPUs."""
    arch, device = archs.find(name)
    if not isinstance(arch, GpuArch):
        raise TunefaError(f"{name} is an NPU, which a sweep does not know: tunefa search does")
    return arch, device


def _swept(plan: Plan, how: dict[str, Any]) -> Outcome:
    """Runs a sweep or continues one. Its processes begin before this one loads Optuna, and its
    seconds count from here."""
    budget = None if how["budget"] is None else Budget.parse(how["budget"])
    engine = _engine(how)
    with contextlib.ExitStack() as stack:
        if how["engine"] == "local":
            _look_for_gpus(plan)
            stack.enter_context(engine).begin(plan)
        _quiet_optuna()
        from tunefa.cli.reports.sweep import Reporter
        from tunefa.sweep import run

        study = _study(plan, how)
        with Reporter() as reporter:
            return run.sweep(study, engine, budget or _budget(plan, study), reporter)


def _quiet_optuna() -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)


def _engine(how: dict[str, Any]) -> Any:
    from tunefa.sweep import engines

    if how["hosts"] is not None and how["engine"] != "slurm":
        raise click.UsageError("--hosts is for --on slurm: leave it out")
    options = {"hosts": how["hosts"]} if how["engine"] == "slurm" else {}
    return engines.create(how["engine"], workers=how["workers"], **options)


def _look_for_gpus(plan: Plan) -> None:
    """Raises TunefaError before anything is written, if there is no GPU of the plan here."""
    if plan.measured:
        from tunefa.sweep.engines import local

        for _, device in local.gpus(plan):
            targets.described(device)


def _study(plan: Plan, how: dict[str, Any]) -> SweepStudy:
    """Makes the study of a new sweep, or finds the one to continue."""
    from tunefa.sweep import study as studies

    held = studies.newest(how["storage"], plan.digest) if how["resume"] else None
    if held is None:
        if how["resume"]:
            click.echo(
                "There is no sweep of these workloads, weights, chips and options to continue: a "
                "new one starts.",
                err=True,
            )
        name = studies.new_name(plan)
        return studies.SweepStudy.made(studies.address(how["storage"], name), plan, name)
    done = sum(each.found is not None for each in held.slices())
    click.echo(f"Continuing {held.name} in {held.shown}: {done} slices are done.", err=True)
    return held


def _budget(plan: Plan, study: SweepStudy) -> Budget:
    """The budget of a sweep without one: that of the sweep which is continued, or the default."""
    from tunefa.sweep.clock import NOTE, Clock

    if NOTE in study.notes:
        held = Clock.of(study.notes)
        return Budget(held.seconds, held.trials)
    chips = max(1, len(plan.targets))
    return Budget(seconds=SECONDS_EACH * len(plan.weights) * chips / _workers(plan))


def _workers(plan: Plan) -> int:
    if not plan.measured:
        return max(1, (os.cpu_count() or 1) // 2)
    return max(1, len(targets.seen()))


def _joined(how: dict[str, Any]) -> Outcome:
    """Adds workers to a sweep that runs."""
    _quiet_optuna()
    from tunefa.sweep import run
    from tunefa.sweep import study as studies

    held = studies.newest(how["storage"], "")
    if held is None:
        raise TunefaError(
            f"there is no sweep in {how['storage'] or studies.folder()}: begin one with "
            "tunefa sweep FILE, or name its --storage"
        )
    return run.join(held, _engine(how))


def _report(found: Outcome, as_json: bool, joined: bool) -> None:
    from tunefa.cli.reports import sweep as reports
    from tunefa.cli.reports import text

    if as_json:
        text.emit_json(reports.to_data(found))
    else:
        reports.show(found, text.console(), joined)
    for worker, why in found.errors.items():
        click.echo(f"{worker} ended early: {why}", err=True)
    if found.interrupted:
        sys.exit(INTERRUPTED)
    if not any(each.is_begun for each in found.items):
        sys.exit(NOTHING_VALID)
