"""tunefa/store/portfolio.py: what serves whom, what is not known, and the records it becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_objective import KERNEL, TARGET
from tests.support.sample_journals import written
from tests.support.sample_landscapes import CONFIGS, trial
from tests.support.sample_portfolios import TIMES, WORKLOADS, journal, journals
from tunefa.errors import TunefaError
from tunefa.spec.trial import identity
from tunefa.spec.workload import Workload
from tunefa.store import landscape, lookup, portfolio
from tunefa.store.landscape import Key
from tunefa.store.portfolio import Choices, Portfolio
from tunefa.store.results import Store


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    return tmp_path


def key(place: int) -> Key:
    return KERNEL.name, identity(CONFIGS[place])


def choices(*paths: Path) -> Choices:
    read = [landscape.load(path) for path in paths or journals()]
    return Choices(read[0].target, portfolio.measured(read))


def worst(found: Portfolio) -> float:
    return max(found.regrets)


def test_few_configs_serve_all_within_the_regret_and_fewer_cannot() -> None:
    found = choices().within(0.02)
    assert set(found.configs) == {key(1), key(2)}
    assert found.bound == 2 and found.is_exact
    assert found.dispatch == {
        Workload.parse(WORKLOADS[0]): key(1),
        Workload.parse(WORKLOADS[1]): key(1),
        Workload.parse(WORKLOADS[2]): key(2),
    }
    assert found.regrets == [pytest.approx(0.015), 0.0, 0.0]


def test_a_regret_of_nothing_gives_each_its_best() -> None:
    found = choices().within(0.0)
    assert set(found.configs) == {key(0), key(1), key(2)} and worst(found) == 0.0


def test_a_wider_regret_needs_fewer() -> None:
    found = choices().within(0.04)
    assert found.configs == [key(2)] and worst(found) == pytest.approx(0.04)


def test_what_was_not_measured_serves_nobody_and_is_counted() -> None:
    made = choices()
    # Config 1 for the third workload, and config 3 for the first two; config 0 failed there.
    assert made.unmeasured == 3
    assert len(made.within(0.02).configs) == 2 and made.least_possible(0.02) == 1
    # Without a time of config 1 for the second workload, no two configs are known to serve all.
    times = {**TIMES, WORKLOADS[1]: {0: 230.0, 3: 200.0}}
    assert len(choices(*(journal(w, t) for w, t in times.items())).within(0.02).configs) == 3


def test_a_config_that_failed_lowers_no_bound() -> None:
    paths = [journal(WORKLOADS[0], {0: 100.0, 1: None}), journal(WORKLOADS[1], {1: 9.0, 0: None})]
    made = choices(*paths)
    assert made.unmeasured == 0
    assert made.least_possible(0.02) == len(made.within(0.02).configs) == 2


def test_the_curve_goes_from_few_configs_to_the_best_of_each() -> None:
    curve = choices().curve()
    assert [len(each.configs) for each in curve] == [1, 2, 3]
    assert [worst(each) for each in curve] == [pytest.approx(0.04), pytest.approx(0.015), 0.0]
    assert portfolio.mean_regret(curve[-1]) == 0.0


def test_every_step_of_a_curve_is_the_best_of_its_size() -> None:
    made = choices()
    for each in made.curve():
        tighter = worst(each) - 1e-6
        assert tighter < 0 or len(made.within(tighter).configs) > len(each.configs)


def test_a_curve_leaves_out_what_is_far_too_slow() -> None:
    paths = [
        journal(WORKLOADS[0], {0: 100.0, 1: 300.0}),
        journal(WORKLOADS[1], {0: 300.0, 1: 100.0}),
    ]
    assert [len(each.configs) for each in choices(*paths).curve()] == [2]


def test_records_hold_the_choice_and_the_lookup_finds_the_nearest(tmp_path: Path) -> None:
    found = choices().within(0.02)
    records = found.records()
    assert [str(r.workload) for r in records] == [str(Workload.parse(w)) for w in WORKLOADS]
    first = records[0]
    assert first.config == dict(CONFIGS[1]) and list(first.config) == list(CONFIGS[1])
    assert (first.device, first.mode, first.median_us) == (TARGET.device.name, "eager", 101.5)
    assert first.certificate is None and first.not_certified == "no race"
    assert first.provenance["portfolio"] == {
        "configs": 2, "limit": 0.02, "regret": 0.015, "workloads": 3,
    }  # fmt: skip
    assert first.provenance["source_hash"] == "0123abcd"
    store = Store([tmp_path / "apart"])
    for record in records:
        store.add(record)
    near = Workload.parse("fwd_q3900_h8_kv2_d64")
    choice = lookup.lookup(store, near, TARGET, [KERNEL])
    assert choice.how == "nearest" and choice.config == dict(CONFIGS[2])


def test_the_newest_journal_of_a_workload_says_mode_source_and_time() -> None:
    provenance = {KERNEL.name: {"date": "2026-01-31T13:00:00+00:00", "source_hash": "0123abcd"}}
    changed = {KERNEL.name: {"date": "2026-01-31T11:00:00+00:00", "source_hash": "other"}}
    newest = journal(WORKLOADS[0], {0: 90.0}, 13, provenance=provenance)
    same = journal(WORKLOADS[0], {0: 100.0, 1: 95.0})
    in_graphs = journal(WORKLOADS[0], {2: 10.0}, mode="graph")
    of_old_source = journal(WORKLOADS[0], {3: 10.0}, 11, provenance=changed)
    read = [landscape.load(path) for path in (of_old_source, in_graphs, same, newest)]
    (found,) = portfolio.measured(read)
    assert found.mode == "eager"
    assert found.times_us == {key(0): 90.0, key(1): 95.0}


def test_predicted_times_and_other_kernels_do_not_count() -> None:
    guess = trial(CONFIGS[0])
    path = written("20260131T140000", guess, kernel=KERNEL.name, workload=WORKLOADS[0])
    assert not portfolio.measured([landscape.load(path)])
    read = [landscape.load(path) for path in journals()]
    assert not portfolio.measured(read, ["another"])
    assert len(portfolio.measured(read, [KERNEL.name])) == 3


def test_there_must_be_a_workload() -> None:
    with pytest.raises(TunefaError, match="no workload was measured"):
        Choices(TARGET, [])


def test_a_config_keeps_the_parameters_of_its_file() -> None:
    found = choices().within(0.02)
    assert [*found.config(key(2))] == [*CONFIGS[2]]
