"""Measures what a trial costs on the device: the check, and the check with the screening.

    python benchmarks/trial_cost.py [--configs 40] [WORKLOAD ...]

The configs are the same in each run: random ones of each kernel that serves the workload. They are
compiled first, as in a search; then a bench judges one after the other, as the device's process of
a search does. The first config is judged once before, for the start of the device. With
PYTHONPATH=/another/tree the tree there is measured, so that two versions can be compared. Prints
one JSON object for each kernel and workload, with times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from dataclasses import replace

import torch

from tunefa.compile.pool import CompilePool
from tunefa.measure import launches
from tunefa.measure.bench import Bench
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources, Trial
from tunefa.spec.workload import Workload

WORKLOADS = (
    "fwd_b1_h32_kv8_q8192_d128_bf16_causal",
    "fwd_b4_h16_kv16_q2048_d64_bf16_full",
    "fwd_b1_h32_kv8_q8192_d128_e4m3_causal",
)


class CheckOnly(Bench):
    """A bench that takes no time of a config that passed."""

    def _screen(self, trial: Trial, best_us: float) -> tuple[float, ...]:
        return (1.0,)


def compiled(case: Case, count: int) -> list[Trial]:
    """So many trials of random configs that compile."""
    configs = list(case.feasible().configs)
    random.Random(str(case.workload)).shuffle(configs)
    made: list[Trial] = []
    with CompilePool(case, also=launches.shape_to_check) as pool:
        while configs and len(made) < count:
            at_once, configs = configs[: count - len(made)], configs[count - len(made) :]
            trials = [each.trial() for each in [pool.submit(config) for config in at_once]]
            made += [_anonymous(trial) for trial in trials if trial.outcome == "ok"]
    return made


def _anonymous(trial: Trial) -> Trial:
    """A trial without the name of its program, which a bench would time only once."""
    return replace(trial, resources=replace(trial.resources or Resources(), code=None))


def judged_ms(bench: Bench, trials: list[Trial]) -> list[float]:
    """Milliseconds of each trial; the outcomes must be `ok`."""
    bench.judge(trials[0], math.inf)
    found, best_us = [], math.inf
    for trial in trials:
        torch.cuda.synchronize()
        start = time.perf_counter()
        judged = bench.judge(trial, best_us)
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - start))
        if judged.outcome != "ok":
            raise SystemExit(f"{judged.outcome}: {judged.reason}: {dict(trial.config)}")
        best_us = min(best_us, judged.median_us or math.inf)
    return found


def main() -> None:
    """Prints the cost for each workload and kernel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, metavar="WORKLOAD")
    parser.add_argument("--configs", type=int, default=40)
    asked = parser.parse_args()
    target = Target.named(torch.cuda.get_device_name())
    for workload in map(Workload.parse, asked.workloads):
        for kernel in kernels.serving(workload, target.arch):
            case = Case(kernel, workload, target)
            trials = compiled(case, asked.configs)
            row: dict[str, object] = {"kernel": kernel.name, "workload": str(workload)}
            row["trials"] = len(trials)
            for name, kind in (("check", CheckOnly), ("trial", Bench)):
                took = judged_ms(kind(case, "eager"), trials)
                row[f"{name}_median_ms"] = round(statistics.median(took), 2)
                row[f"{name}_mean_ms"] = round(statistics.fmean(took), 2)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
