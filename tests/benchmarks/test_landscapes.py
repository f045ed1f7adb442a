"""benchmarks/landscapes/: each file is a whole landscape, and `auto` finds its way in one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from benchmarks.bakeoff import runs
from benchmarks.landscape import sampled
from tunefa.measure import race
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import identity
from tunefa.spec.workload import Workload
from tunefa.store import landscape
from tunefa.store import results as store
from tunefa.store.landscape import Landscape

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "landscapes"
FILES = sorted(FOLDER.glob("*.jsonl.xz"))
KERNEL = "attention_fwd_triton"
RACED = 16
MADE_WITH = {"tunefa", "triton", "compiler", "torch", "driver", "source_hash", "date"}


def named(part: str) -> Path:
    """The one file with this in its name."""
    (path,) = (path for path in FILES if part in path.name)
    return path


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.name)
def recorded(request: pytest.FixtureRequest) -> Landscape:
    return landscape.load(request.param)


def test_there_are_eight_workloads() -> None:
    assert len(FILES) >= 8


def test_it_says_what_it_is_and_what_it_was_made_with(recorded: Landscape) -> None:
    device = recorded.target.device.name.lower().replace(" ", "-")
    assert recorded.path.name == f"{device}--{recorded.workload}.jsonl.xz"
    assert recorded.kernels == [KERNEL] and recorded.measured
    made = recorded.provenance[KERNEL]
    assert made.keys() == MADE_WITH and all(made.values())


def test_it_covers_the_feasible_space(recorded: Landscape) -> None:
    kernel = kernels.load(KERNEL)
    held = {identity(trial.config) for trial in recorded.trials(KERNEL)}
    feasible = Case(kernel, recorded.workload, recorded.target).feasible().configs
    if recorded.provenance[KERNEL]["source_hash"] != kernel.source_hash:
        pytest.skip("recorded before the kernel or its space changed")
    assert held == {identity(config) for config in feasible}


def test_every_right_trial_was_checked_and_timed(recorded: Landscape) -> None:
    right = [trial for trial in recorded.trials(KERNEL) if trial.outcome == "ok"]
    assert all(trial.error is not None and trial.error < 0.02 for trial in right)
    assert all(len(trial.samples_us) in (1, 5) for trial in right)
    failed = [trial for trial in recorded.trials(KERNEL) if trial.outcome != "ok"]
    assert all(trial.reason for trial in failed)


def test_the_best_screened_raced_and_one_of_them_is_the_best(recorded: Landscape) -> None:
    right = [trial for trial in recorded.trials(KERNEL) if trial.outcome == "ok"]
    right.sort(key=lambda trial: trial.median_us or 0.0)
    races = [recorded.raced(KERNEL, trial.config) for trial in right[:RACED]]
    assert all(trial and len(trial.samples_us) >= race.LOOK_EVERY for trial in races)
    excess = recorded.excess(KERNEL)
    best = min(excess, key=lambda config: excess[config])
    assert best in {identity(trial.config) for trial in right[:RACED]}


def test_auto_is_within_2_percent_after_25_evaluations() -> None:
    course = runs.course(named("b32_h16_kv16_q512_k512_d64"))
    within = runs.TARGETS.index(0.02)
    counts = [runs.own(course, "auto", seed, limit=50)[within] or 50 for seed in range(3)]
    assert median(counts) <= 25, counts


@pytest.mark.parametrize("kernel", ["attention_fwd_cuda_sm90", "attention_fwd_gluon_sm90"])
def test_a_sample_is_half_near_the_known_configs(kernel: str) -> None:
    target = Target.named("h200")
    long = Case(kernels.load(kernel), Workload.parse("b4_h8_q4096_d192_full"), target)
    records = store.default_store().records()
    configs = sampled(long, records, 100)
    held = {identity(config) for config in configs}
    assert len(configs) == len(held) == 100
    assert held < {identity(config) for config in long.feasible().configs}
    assert identity(long.default()) == identity(configs[0])
    changed = [len(config.items() - configs[0].items()) for config in configs]
    assert median(changed[:50]) < median(changed[50:])
    short = replace(long, workload=Workload.parse("b32_h8_q512_d192_full"))
    other = {identity(config) for config in sampled(short, records, 100)[50:]}
    assert len({identity(config) for config in configs[50:]} & other) > 40


def test_a_sample_of_a_small_space_is_the_whole() -> None:
    kernel = kernels.load("attention_fwd_gluon_sm90")
    case = Case(kernel, Workload.parse("b4_h8_q4096_d256_full"), Target.named("h200"))
    assert len(sampled(case, [], 600)) == len(case.feasible().configs)
