"""benchmarks/neighbours.py: its workloads, and what a regret is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import neighbours
from benchmarks.neighbours import Regret
from tests.fake_objective import KERNEL, SM90, WORKLOAD, Fake, request, user_store
from tests.sample_records import predicted
from tunefa import arch as archs
from tunefa import assets, lookup, search, store
from tunefa import kernel as kernels
from tunefa.lookup import Choice
from tunefa.store import Store
from tunefa.workload import Workload


def test_twenty_workloads_that_nobody_tuned() -> None:
    workloads = {Workload.parse(text) for text in neighbours.WORKLOADS}
    assert len(workloads) == len(neighbours.WORKLOADS) == 20
    tuned = {record.workload for record in Store([assets.root("results")]).records()}
    assert not workloads & tuned
    for workload in workloads:
        assert kernels.serving(workload, archs.load("sm90"))


def chosen() -> Choice:
    return lookup.lookup(user_store(), WORKLOAD, SM90, "NVIDIA H200", [KERNEL])


def test_regret_is_what_the_search_says_of_both(fake: type[Fake]) -> None:
    choice = chosen()
    fake.judge = staticmethod(lambda config: 120.0 if config == choice.config else 100.0)
    regret = neighbours.of(choice, search.search(request(), user_store()))
    assert (regret.chosen_us, regret.found_us, regret.trials) == (120.0, 100.0, 6)
    assert regret.excess == pytest.approx(0.2)
    assert regret.why.startswith("default: no result applies")


def test_a_choice_that_was_not_timed_is_an_error(fake: type[Fake]) -> None:
    choice = chosen()
    fake.judge = staticmethod(lambda config: "wrong" if config == choice.config else 100.0)
    with pytest.raises(ValueError, match="did not time the choice"):
        neighbours.of(choice, search.search(request(), user_store()))


def test_a_neighbours_record_takes_part_in_the_search(fake: type[Fake], tmp_path: Path) -> None:
    """A store of the search's own comes before those that the choice is from."""
    known = user_store()
    config: Any = dict(KERNEL.space.feasible(WORKLOAD, SM90).configs[7])
    near = "fwd_b1_h8_kv2_q1536_d64"
    known.add(predicted(near, config=config, kernel=KERNEL.name))
    choice = chosen()
    assert choice.config == config
    result = search.search(request(), Store([tmp_path, *known.roots]))
    assert neighbours.of(choice, result).excess == 0.0
    assert [record.workload for record in known.records()] == [Workload.parse(near)]
    assert store.read(next(tmp_path.rglob("*.yaml")))[0].workload == WORKLOAD


def test_the_table() -> None:
    one = Regret("fwd_b1", "nearest: x", "a", "b", 102.0, 100.0, 9)
    two = Regret("fwd_b2", "default", "a", "a", 50.0, 50.0, 9)
    assert neighbours.table([one, two]) == (
        "| workload | choice | us | found | regret |\n"
        "| --- | --- | ---: | ---: | ---: |\n"
        "| b1 | nearest: x | 102.0 | 100.0 | 2.0% |\n"
        "| b2 | default | 50.0 | 50.0 | 0.0% |\n\n"
        "Regret: median 1.0%, largest 2.0%.\n"
    )
