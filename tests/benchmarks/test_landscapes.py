"""benchmarks/landscapes/: the whole landscapes, in which `auto` finds its way, and the sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from benchmarks.bakeoff import runs
from benchmarks.landscape import sampled
from tunefa.measure import race
from tunefa.measure.comparison import TOLERANCE
from tunefa.measure.racing import FIRST_SAMPLES, SCREEN_SAMPLES
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Trial, identity, time_us
from tunefa.spec.workload import Workload
from tunefa.store import landscape
from tunefa.store import results as store
from tunefa.store.landscape import Landscape

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "landscapes"
FILES = sorted(FOLDER.glob("*.jsonl.xz"))
KERNEL = "attention_fwd_triton"
RACED = 16
MADE_WITH = {"tunefa", "triton", "compiler", "torch", "driver", "source_hash", "date"}


SAMPLES = sorted((FOLDER / "sampled").glob("*.jsonl.xz"))
SAMPLED_CONFIGS = 600
SAMPLED_WORKLOADS = {
    ("nvidia-h200", "attention_fwd_cuda_sm90"): 16,
    ("nvidia-h200", "attention_fwd_gluon_sm90"): 14,
    ("nvidia-h100-80gb-hbm3", "attention_fwd_cuda_sm90"): 6,
}
"""The least number of workloads that are sampled, by device and kernel."""


def named(part: str) -> Path:
    """The one file with this in its name."""
    (path,) = (path for path in FILES if part in path.name)
    return path


def is_current(recorded: Landscape) -> bool:
    """Whether the kernel and its space are those that were recorded."""
    made = recorded.provenance.items()
    return all(each["source_hash"] == kernels.load(name).source_hash for name, each in made)


def check_race(recorded: Landscape, right: Sequence[Trial]) -> None:
    """Asserts that the best trials raced, and that one of them is the best."""
    (kernel,) = recorded.kernels
    best = sorted(right, key=time_us)[:RACED]
    races = [recorded.raced(kernel, trial.config) for trial in best]
    assert all(trial and len(trial.samples_us) >= race.LOOK_EVERY for trial in races)
    excess = recorded.excess(kernel)
    fastest = min(excess, key=lambda config: excess[config])
    assert fastest in {identity(trial.config) for trial in best}


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
    held = {identity(trial.config) for trial in recorded.trials(KERNEL)}
    case = Case(kernels.load(KERNEL), recorded.workload, recorded.target)
    feasible = case.feasible().configs
    if not is_current(recorded):
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
    check_race(recorded, right)


def test_auto_is_within_2_percent_after_25_evaluations() -> None:
    course = runs.course(named("b32_h16_kv16_q512_k512_d64"))
    within = runs.TARGETS.index(0.02)
    counts = [runs.own(course, "auto", seed, limit=50)[within] or 50 for seed in range(3)]
    assert median(counts) <= 25, counts


def test_there_are_samples_of_both_kernels_on_many_workloads() -> None:
    parts = [path.name.removesuffix(".jsonl.xz").split("--") for path in SAMPLES]
    for (device, kernel), least in SAMPLED_WORKLOADS.items():
        held = {text for name, text, own in parts if (name, own) == (device, kernel)}
        assert len(held) >= least, (device, kernel)
        workloads = [Workload.parse(text) for text in held]
        assert {True, False} == {each.causal for each in workloads}
        assert {each.head_dim for each in workloads} >= {64, 128, 256}


@pytest.mark.parametrize("path", SAMPLES[::4], ids=lambda path: path.name)
def test_a_sampled_landscape_is_whole_checked_timed_and_raced(path: Path) -> None:
    """Every fourth file is read, which takes a second."""
    made = landscape.load(path)
    (kernel,) = made.kernels
    device = made.target.device.name.lower().replace(" ", "-")
    assert path.name == f"{device}--{made.workload}--{kernel}.jsonl.xz" and made.measured
    case = Case(kernels.load(kernel), made.workload, made.target)
    tools = MADE_WITH - ({"triton"} if case.kernel.language == "cuda" else set())
    assert made.provenance[kernel].keys() == tools and all(made.provenance[kernel].values())
    trials = {identity(trial.config): trial for trial in made.trials(kernel)}
    if len(trials) < SAMPLED_CONFIGS and is_current(made):
        assert trials.keys() == {identity(config) for config in case.feasible().configs}
    right = [trial for trial in trials.values() if trial.outcome == "ok"]
    assert all(trial.reason for trial in trials.values() if trial.outcome != "ok")
    limit = TOLERANCE[made.workload.dtype]
    assert all(trial.error is not None and trial.error < limit for trial in right)
    assert all(len(trial.samples_us) in (FIRST_SAMPLES, SCREEN_SAMPLES) for trial in right)
    assert all(trial.resources and trial.resources.registers for trial in right)
    check_race(made, right)


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
    short = replace(long, workload=Workload.parse("b8_h8_q2048_d192_full"))
    other = {identity(config) for config in sampled(short, records, 100)[50:]}
    assert len({identity(config) for config in configs[50:]} & other) > 40


def test_a_sample_of_a_small_space_is_the_whole() -> None:
    kernel = kernels.load("attention_fwd_gluon_sm90")
    case = Case(kernel, Workload.parse("b4_h8_q4096_d256_full"), Target.named("h200"))
    assert len(sampled(case, [], 600)) == len(case.feasible().configs)
