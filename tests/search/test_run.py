"""tunefa/search/run.py: what is proposed, kept and reported, and when a search ends.

The objective is a fake here; tests/search/test_run_whole.py has the real one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import optuna
import pytest

from tests.support.clock import Clock
from tests.support.fake_objective import (
    KERNEL,
    SM90,
    WORKLOAD,
    Fake,
    Seen,
    by_tile,
    request,
    user_store,
)
from tests.support.own_kernels import OwnKernels
from tunefa.errors import TunefaError
from tunefa.measure.objective import Raced
from tunefa.search import run as search
from tunefa.search import study
from tunefa.search.budget import Budget
from tunefa.search.parts import Part
from tunefa.search.state import SearchState
from tunefa.spec.trial import Config, Outcome, Trial
from tunefa.store import journal
from tunefa.store import results as store
from tunefa.store.results import Store


def test_the_best_becomes_a_record(fake: type[Fake]) -> None:
    fake.judge = staticmethod(by_tile)
    result = search.search(request(budget=Budget(trials=60)), user_store())
    record = result.record
    assert record is not None and result.stored is not None
    assert (record.objective, record.device, record.arch) == ("predicted", None, "sm90")
    assert record.workload == WORKLOAD and record.kernel == KERNEL.name
    best = min(f.trial.predicted_us or 0.0 for f in result.finished)
    assert record.median_us == best == result.top(1)[0].trial.median_us
    assert record.tflops == pytest.approx(WORKLOAD.flops / best / 1e6)
    assert store.read(result.stored) == [record] == user_store().records()
    made = record.provenance
    assert made["source_hash"] == KERNEL.source_hash and made["trials"] == 60
    assert made["check"] == "relative error 1.0e-04 against fp64 in the interpreter"
    assert {"tunefa", "triton", "torch", "compiler", "driver", "date", "strategy"} <= made.keys()


def test_every_trial_is_in_the_journal(fake: type[Fake]) -> None:
    fake.judge = staticmethod(lambda c: "timeout" if c["num_warps"] == 8 else by_tile(c))
    result = search.search(request(budget=Budget(trials=50), strategy="random"), user_store())
    header = json.loads(result.journal.read_text().splitlines()[0])
    assert header["workload"] == str(WORKLOAD) and header["arch"] == "sm90"
    assert header["strategy"] == "random" and header["seed"] == 0
    assert header["provenance"][KERNEL.name]["source_hash"] == KERNEL.source_hash
    last = {repr(t.config): t for _, t in journal.read(result.journal)}
    assert last == {repr(f.trial.config): f.trial for f in result.finished}
    assert len(last) == 50 and {t.outcome for t in last.values()} == {"ok", "timeout"}


def test_progress(fake: type[Fake]) -> None:
    fake.judge = staticmethod(lambda c: "crashed" if c["num_warps"] == 8 else by_tile(c))
    seen = Seen()
    result = search.search(request(budget=Budget(trials=30)), user_store(), seen)
    searched = [r for r in seen.reports if r.stage == "search"]
    assert [r.done for r in searched] == list(range(1, 31))
    assert [r.fraction for r in searched] == [n / 30 for n in range(1, 31)]
    assert {r.stage for r in seen.reports} == {"search", "check"}
    assert all(r.kernel == KERNEL.name and r.elapsed_s >= 0 for r in seen.reports)
    last = seen.reports[-1]
    failed = sum(f.trial.outcome == "crashed" for f in result.finished)
    assert (last.done, last.failed, last.fraction) == (30, failed, 1.0)
    assert last.best is not None and result.record is not None
    assert last.best.config == result.record.config
    bests = [r.best.median_us for r in seen.reports if r.best]
    assert bests == sorted(bests, key=lambda us: -(us or 0))


def test_of_equals_the_record_is_on_top(fake: type[Fake]) -> None:
    asked = request(budget=Budget(trials=100))
    result = search.search(asked, user_store())
    assert result.record is not None
    other = result.finished[50].trial.config
    changed = replace(result, record=replace(result.record, config=dict(other)))
    for each, config in ((result, result.record.config), (changed, other)):
        assert each.top(1)[0].trial.config == config


def test_top_holds_what_is_right_best_first(fake: type[Fake]) -> None:
    fake.judge = staticmethod(lambda c: "crashed" if c["BLOCK_M"] == 128 else by_tile(c))
    result = search.search(request(budget=Budget(trials=100)), user_store())
    times = [f.trial.median_us for f in result.top(5)]
    assert len(times) == 5 and times == sorted(times, key=lambda us: us or 0)
    assert all(f.trial.outcome == "ok" for f in result.top(1000))


@pytest.mark.parametrize("outcome", ["compile_failed", "timeout", "crashed", "refused", "wrong"])
def test_nothing_right_is_no_record(fake: type[Fake], outcome: Outcome) -> None:
    fake.judge = staticmethod(lambda config: outcome)
    result = search.search(request(), user_store())
    assert result.record is None and result.stored is None and not result.interrupted
    assert result.top(5) == [] and len(result.finished) == 6
    assert user_store().records() == []


def test_a_kernel_found_wrong_is_no_record(fake: type[Fake]) -> None:
    fake.wrong = frozenset({KERNEL.name})
    result = search.search(request(), user_store())
    assert result.record is None and user_store().records() == []
    assert {f.trial.outcome for f in result.finished} == {"wrong"}


def test_the_default_is_always_tried(fake: type[Fake]) -> None:
    result = search.search(request(budget=Budget(trials=1)), user_store())
    assert [f.trial.config for f in result.finished] == [KERNEL.default(WORKLOAD, SM90)]


def test_what_the_store_knows_is_tried_next(fake: type[Fake]) -> None:
    some = search.search(request(budget=Budget(trials=30)), user_store())
    neighbour = some.finished[17].trial.config
    assert some.record is not None
    far = replace(WORKLOAD, seqlen_q=4096, seqlen_k=4096)
    known = replace(some.record, workload=far, config=dict(neighbour), median_us=0.5)
    held = Store([store.user_root().parent / "other"])
    held.add(known)
    result = search.search(request(budget=Budget(trials=2)), held)
    assert result.finished[1].trial.config == neighbour


def test_two_kernels_share_the_budget(fake: type[Fake], own_kernels: OwnKernels) -> None:
    first = own_kernels.add_attention("shares_one")
    second = own_kernels.add_attention("shares_two")
    for budget in (10, 11):
        result = search.search(request(first, second, budget=Budget(trials=budget)), user_store())
        names = [f.kernel for f in result.finished]
        assert len(names) == budget
        assert abs(names.count("shares_one") - names.count("shares_two")) <= 1


def test_two_kernels_share_the_seconds(
    fake: type[Fake], own_kernels: OwnKernels, clock: Clock
) -> None:
    first = own_kernels.add_attention("half_the_time_a")
    second = own_kernels.add_attention("half_the_time_b")
    counter = iter(range(10**6))
    fake.judge = staticmethod(lambda config: 1e6 * 0.9 ** next(counter))  # always a gain
    fake.pause_s = 0.0625
    seen = Seen()
    budget = Budget(seconds=4)
    search.search(request(first, second, budget=budget), user_store(), seen)
    assert budget.elapsed_s == 4.0
    until = max(r.elapsed_s for r in seen.reports if r.kernel == first.name)
    assert until == 2.0
    assert {r.kernel for r in seen.reports if r.stage == "search"} == {first.name, second.name}


def test_a_search_by_seconds_says_at_once_how_long_it_takes(fake: type[Fake], clock: Clock) -> None:
    fake.pause_s = 0.25
    seen = Seen()
    search.search(request(budget=Budget(seconds=1.5)), user_store(), seen)
    assert (seen.reports[0].done, seen.reports[0].stage) == (0, "search")


def test_a_right_kernel_wins_over_a_faster_wrong_one(
    fake: type[Fake], own_kernels: OwnKernels
) -> None:
    right, wrong = own_kernels.add_attention("right"), own_kernels.add_attention("wrong")
    fake.wrong = frozenset({"wrong"})
    result = search.search(request(wrong, right, budget=Budget(trials=20)), user_store())
    assert result.record is not None and result.record.kernel == "right"


def test_a_space_that_is_used_up_ends_the_search(fake: type[Fake]) -> None:
    one = tuple(replace(p, values=(KERNEL.default(WORKLOAD, SM90)[p.name],))
                for p in KERNEL.space.parameters)  # fmt: skip
    kernel = replace(KERNEL, space=replace(KERNEL.space, parameters=one))
    for budget in (Budget(trials=50), Budget(seconds=600)):
        result = search.search(request(kernel, budget=budget), user_store())
        assert len(result.finished) == len(result.feasible[KERNEL.name].configs) == 1


def test_a_search_by_seconds_ends_on_a_plateau(fake: type[Fake], clock: Clock) -> None:
    fake.pause_s = 0.5
    result = search.search(request(budget=Budget(seconds=600)), user_store())
    assert result.elapsed_s < 60
    assert 60 < len(result.finished) < 75  # the first was the best, and 60 more were no better
    assert result.record is not None and not result.interrupted


def test_a_search_by_trials_does_not_end_on_a_plateau(fake: type[Fake]) -> None:
    result = search.search(request(budget=Budget(trials=100)), user_store())
    assert len(result.finished) == 100


def test_a_search_ends_when_its_seconds_are_used(fake: type[Fake], clock: Clock) -> None:
    counter = iter(range(10**6))
    fake.judge = staticmethod(lambda config: 1e6 * 0.9 ** next(counter))  # always a gain
    fake.pause_s = 0.03125
    start = clock.now
    result = search.search(request(budget=Budget(seconds=2)), user_store())
    assert clock.now - start == result.elapsed_s == 2.0
    assert len(result.finished) == 64


@pytest.mark.parametrize("strategy", ["auto", "gp", "grid", "prior", "random", "tpe"])
def test_any_strategy_can_be_named(fake: type[Fake], strategy: str) -> None:
    result = search.search(request(strategy=strategy), user_store())
    assert len(result.finished) == 6 and result.record is not None
    assert result.record.provenance["strategy"] == strategy


def test_an_unknown_strategy_is_one_sentence(fake: type[Fake]) -> None:
    with pytest.raises(TunefaError, match="unknown strategy 'rando': did you mean random"):
        search.search(request(strategy="rando"), user_store())


def test_the_seed_decides(fake: type[Fake]) -> None:
    def configs(seed: int) -> list[Config]:
        asked = request(strategy="random", seed=seed)
        return [f.trial.config for f in search.search(asked, user_store()).finished]

    assert configs(1) == configs(1) != configs(2)


def test_the_study_lies_beside_the_journal(fake: type[Fake]) -> None:
    result = search.search(request(), user_store())
    beside = study.beside(result.journal)
    [name] = optuna.get_all_study_names(beside)
    assert name == f"{result.journal.stem}-{KERNEL.name}"
    assert len(optuna.load_study(study_name=name, storage=beside).trials) == 6


def test_what_a_race_says_replaces_what_was_counted(fake: type[Fake]) -> None:
    def race(self: Fake, trials: list[Trial], *_: object) -> Raced:
        first, second, *rest = trials
        slower = replace(first, predicted_us=300.0)
        return Raced([slower, replace(second, outcome="wrong", reason="no"), *rest], slower)

    fake.judge = staticmethod(by_tile)
    fake.race = race  # type: ignore[assignment, method-assign]
    seen = Seen()
    result = search.search(request(budget=Budget(trials=30)), user_store(), seen)
    right = [f.trial for f in result.finished if f.trial.outcome == "ok"]
    last = seen.reports[-1]
    assert (last.done, last.failed) == (30, 1)
    assert last.best == min(right, key=lambda trial: trial.median_us or 0.0)
    assert all(r.best is not None for r in seen.reports)


def test_progress_says_what_was_there_before(fake: type[Fake]) -> None:
    first = search.search(request(), user_store())
    seen = Seen()
    more = request(resume=first.journal, budget=Budget(trials=12))
    search.search(more, user_store(), seen)
    assert {report.earlier for report in seen.reports} == {0.5}
    assert seen.reports[0].fraction == 7 / 12


def test_a_search_that_is_resumed_goes_on_with_its_study(fake: type[Fake], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    first = search.search(request(storage=url), user_store())
    more = request(storage=url, resume=first.journal, budget=Budget(trials=10))
    search.search(more, user_store())
    [name] = optuna.get_all_study_names(url)
    configs = [
        t.user_attrs["config"] for t in optuna.load_study(study_name=name, storage=url).trials
    ]
    assert len(configs) == len(set(configs)) == 10


def test_a_wrong_storage_leaves_nothing_behind(fake: type[Fake]) -> None:
    with pytest.raises(TunefaError, match="the storage 'study' cannot be opened"):
        search.search(request(storage="study"), user_store())
    assert journal.paths() == []


def test_a_default_that_was_not_ready_in_time_races() -> None:
    asked = request(measured=True, strategy="random", budget=Budget(trials=3))
    case, nothing = asked.case(KERNEL), cast(Any, None)
    default = case.default()
    state = SearchState(asked, Seen(), nothing, nothing, None)
    part = Part(case, nothing, [], [default], [], 1.0)
    other = dict(default, BLOCK_M=64 if default["BLOCK_M"] != 64 else 128)
    state.count(KERNEL.name, Trial(other, "ok", samples_us=(5.0,)))
    assert [t.config for t in search._finalists(state, part, False)] == [other, default]
    state.count(KERNEL.name, Trial(default, "wrong", "error 5.0e-01"))
    assert [t.config for t in search._finalists(state, part, False)] == [other]
