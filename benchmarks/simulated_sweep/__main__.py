"""A whole sweep of simulated GPUs in virtual time: for how long is each GPU busy, and how does it
end?

    python -m benchmarks.simulated_sweep --budget 250
    python -m benchmarks.simulated_sweep --budget 120 --seqlen 4k,16k --races 2

The workloads are those of `tunefa sweep --model llama3-8b`. A trial, a race and a compiler take as
long as `device.py` and `host.py` say; what searches compute takes no time. So figures say how the
budget is divided, and not how fast a host is. Threads go on in any sequence, so two runs differ a
little. It needs Linux, no GPU, and takes a minute or more.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

import click
import optuna

from benchmarks.simulated_sweep import engine as engines
from benchmarks.simulated_sweep.engine import Engine
from benchmarks.simulated_sweep.virtual_time import VirtualTime
from tunefa.cli import sweep_workloads
from tunefa.search.budget import Budget
from tunefa.sweep import run, study
from tunefa.sweep.outcome import Outcome
from tunefa.sweep.plan import Plan

LAST_S = 20.0
"""The last seconds of the budget, of which the report says how busy they were."""


@click.command(help=__doc__)
@click.option("--budget", default=250.0, show_default=True, help="Seconds.")
@click.option("--gpus", default=2, show_default=True)
@click.option("--compilers", default=13, show_default=True, help="Of each GPU.")
@click.option("--batch", default="1,8", show_default=True)
@click.option("--seqlen", default="1k,2k,4k,8k", show_default=True)
@click.option("--ops", default="fwd,bwd,decode", show_default=True)
@click.option("--kernel", "kernels", multiple=True, help="Only these.")
@click.option("--races", default=1.0, show_default=True, help="They take so many times as long.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(
    budget: float, gpus: int, compilers: int, kernels: tuple[str, ...], races: float, seed: int,
    as_json: bool, **lists: str,
) -> None:  # fmt: skip
    """Simulates a sweep in this process, which then ends at once with all its threads."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    weights, _ = sweep_workloads.merged(
        sweep_workloads.chosen(None, ("llama3-8b",), (), dict(lists)), sms=0
    )
    plan = Plan(weights, kernels=kernels, seed=seed)
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUNEFA_HOME"] = home
        engines.install()
        clock = VirtualTime()
        clock.install()
        name = study.new_name(plan)
        held = study.SweepStudy.made(study.address(None, name), plan, name)
        engine = Engine(clock, gpus, compilers, races)
        found = run.sweep(held, engine, Budget(seconds=budget))
        data = to_data(found, engine, clock.now, budget)
        print(json.dumps(data) if as_json else described(data))
        sys.stdout.flush()
    os._exit(0)


def to_data(found: Outcome, engine: Engine, wall_s: float, budget_s: float) -> dict[str, Any]:
    """Returns what a sweep of so many seconds did, as plain data."""
    gpus = {}
    for name, log in engine.logs.items():
        busy_s = log.busy_s(0.0, wall_s)
        last_s = log.busy_s(budget_s - LAST_S, budget_s)
        gpus[name] = {
            "busy_share": busy_s / wall_s,
            "busy_share_at_the_end": last_s / LAST_S,
            "after_the_budget_s": log.busy_s(budget_s, wall_s),
            "ended_s": engine.ended_at.get(name),
        }
    return {
        "budget_s": budget_s,
        "wall_s": wall_s,
        "workloads": len(found.items),
        "records": sum(each.is_begun for each in found.items),
        "missing": [each.key.split("/")[-1] for each in found.missing],
        "trials": sum(each.trials for each in found.items),
        "gpus": gpus,
    }


def described(data: dict[str, Any]) -> str:
    """Returns the data as text."""
    lines = [
        f"{data['records']} of {data['workloads']} workloads have a record, after {data['trials']} "
        f"trials. The sweep took {data['wall_s']:.1f} s of {data['budget_s']:.0f}."
    ]
    for name, gpu in data["gpus"].items():
        ended = "was ended" if gpu["ended_s"] is None else f"ended after {gpu['ended_s']:.1f} s"
        lines.append(
            f"{name} was busy for {gpu['busy_share']:.1%} of it, for "
            f"{gpu['busy_share_at_the_end']:.0%} of the last {LAST_S:.0f} s of the budget and "
            f"{gpu['after_the_budget_s']:.1f} s after it. Its worker {ended}."
        )
    return "\n".join([*lines, *(f"no record: {name}" for name in data["missing"])])


if __name__ == "__main__":
    main()
