"""Records landscapes: many configs of a kernel are checked and screened for a workload, and the
best 16 race.

    python -m benchmarks.landscape fwd_b4_h16_q4096_k4096_d128_bf16_full [WORKLOAD ...]
    python -m benchmarks.landscape --kernel attention_fwd_cuda_sm90 --configs 600 WORKLOAD ...

Needs the GPU. A landscape is the compressed journal of such a search. `tunefa search --replay FILE`
and `make bench-search` read it. If a run is interrupted, start it again: it continues.

Without `--configs`, every feasible config is recorded, in benchmarks/landscapes/. With it, that
many are, in benchmarks/landscapes/sampled/: half of them near the configs that are known to be
good (the kernel's default and its records), a sixth that the cost model expects to be fastest, and
a third at random.

Where a machine has several GPUs, run one process for each of them, with CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import lzma
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tunefa.compile.launch import driver
from tunefa.compile.pool import compilers
from tunefa.compile.workers import Workers
from tunefa.costmodel.estimate import expected_us
from tunefa.errors import TunefaError
from tunefa.measure.measured import MeasuredInGraph
from tunefa.search import resume
from tunefa.search.budget import Budget
from tunefa.search.request import Request
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Trial, identity, time_us
from tunefa.spec.workload import Workload
from tunefa.store import lookup
from tunefa.store import results as store
from tunefa.store.journal import Journal
from tunefa.store.record import Record

KERNEL = "attention_fwd_triton"
FOLDER = Path(__file__).resolve().parent / "landscapes"
SAMPLED = FOLDER / "sampled"
FINALISTS = 16
SEED = 0


def sampled(case: Case, records: Sequence[Record], count: int) -> list[Config]:
    """Returns `count` feasible configs, or all if there are fewer: first the known good ones.

    Half are known good ones and configs near them: one parameter differs, then two do. A sixth are
    those that the cost model expects to be fastest, equal ones in random order: a prediction would
    recommend them. The rest is drawn at random, the same for workloads with the same feasible
    configs, so that these share binaries.
    """
    feasible = {identity(config): config for config in case.feasible().configs}
    ranked = lookup.by_trust(records, case.workload, case.target)
    known = [record.config for record in ranked if record.kernel == case.kernel.name]
    with contextlib.suppress(TunefaError):
        known.insert(0, case.default())
    chosen: dict[object, Config] = {}
    for config in itertools.chain(known, _near(case, known, 1), _near(case, known, 2)):
        if len(chosen) >= count // 2:
            break
        if identity(config) in feasible:
            chosen.setdefault(identity(config), config)
    left = sorted(feasible.keys() - chosen.keys(), key=_lot)
    hopeful = sorted(left, key=lambda key: round(expected_us(case, feasible[key]), 1))
    for key in itertools.chain(hopeful[: count // 6], left):
        if len(chosen) >= count:
            break
        chosen.setdefault(key, feasible[key])
    return [*chosen.values()]


def _lot(key: object) -> bytes:
    """A number that is random but always the same for a config."""
    return hashlib.sha256(f"{SEED} {key}".encode()).digest()


def _near(case: Case, known: Sequence[Config], changes: int) -> Iterator[Config]:
    """Yields the configs that differ from a known one in so many parameters, in random order."""
    parameters = list(itertools.combinations(case.kernel.space.parameters, changes))
    made = []
    for config in known:
        for changed in parameters:
            for values in itertools.product(*(each.values for each in changed)):
                named = zip((each.name for each in changed), values, strict=True)
                made.append({**config, **dict(named)})
    yield from sorted(made, key=lambda config: _lot(identity(config)))


def record(
    case: Case, configs: Sequence[Config], file: Path, shared: Workers, bench: Workers
) -> None:
    """Measures configs, except those that an interrupted run has measured, and writes the file.

    `shared` are the compilers, and `bench` is the one process that times configs.
    """
    budget = Budget(trials=len(configs))
    request = Request(case.workload, case.target, True, (case.kernel,), budget, mode="graph")
    request = replace(request, strategy="random", resume=resume.find(request).path)
    start = time.monotonic()
    with resume.opened(request) as journal:
        earlier = resume.trials(request.resume, case)
        done = {identity(trial.config): trial for trial in earlier}
        todo = [config for config in configs if identity(config) not in done]
        objective = MeasuredInGraph(case, None, bench, shared)
        for trial in _trials(objective, todo, 2 * shared.count):
            journal.append(case.kernel.name, trial)
            done[identity(trial.config)] = trial
            if len(done) % 100 == 0:
                elapsed = time.monotonic() - start
                print(f"{case.workload} {len(done)}/{len(configs)} {elapsed:.0f} s", flush=True)
        _race(case, objective, list(done.values()), journal)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lzma.compress(journal.path.read_bytes(), preset=9))
    print(f"{file.name} done in {time.monotonic() - start:.0f} s", flush=True)


def _trials(objective: MeasuredInGraph, configs: Sequence[Config], width: int) -> Iterator[Trial]:
    """Yields a trial of each config; `width` of them are in progress at once."""
    left = iter(configs)
    for config in itertools.islice(left, width):
        objective.submit(config)
    for _ in configs:
        if (trial := objective.next()) is not None:
            yield trial
        for config in itertools.islice(left, 1):
            objective.submit(config)


def _race(
    case: Case, objective: MeasuredInGraph, trials: Sequence[Trial], journal: Journal
) -> None:
    """Races the best trials, and writes what becomes of them."""
    right = sorted((trial for trial in trials if trial.outcome == "ok"), key=time_us)
    for trial in objective.race(right[:FINALISTS], None).trials:
        journal.append(case.kernel.name, trial)


def main() -> None:
    """Records a landscape for each workload."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.landscape",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workloads", nargs="+", type=Workload.parse, metavar="WORKLOAD")
    parser.add_argument("--kernel", default=KERNEL, help=f"default: {KERNEL}")
    parser.add_argument("--configs", type=int, metavar="N", help="default: every feasible config")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="compilers at once")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write the files there")
    options = parser.parse_args()
    target = Target.named(driver.device(0).name)
    device = target.device.name.lower().replace(" ", "-")
    with compilers(options.workers) as shared, Workers(1) as bench:
        for workload in options.workloads:
            case = Case(kernels.load(options.kernel), workload, target)
            if options.configs is None:
                configs: list[Config] = [*case.feasible().configs]
                folder, name = FOLDER, f"{device}--{workload}.jsonl.xz"
                # Neighbours in the list share a binary, and would compile it at the same time.
                random.Random(SEED).shuffle(configs)
            else:
                configs = sampled(case, store.default_store().records(), options.configs)
                folder, name = SAMPLED, f"{device}--{workload}--{options.kernel}.jsonl.xz"
            record(case, configs, (options.out or folder) / name, shared, bench)


if __name__ == "__main__":
    main()
