"""The study: what Optuna is told, where it is kept, and how it goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend

from tests.support.sample_problem import FEASIBLE, SMALL, good, problem
from tunefa.errors import TunefaError
from tunefa.search import strategies, study
from tunefa.search.strategy import Strategy
from tunefa.spec.trial import MemoryPlan, Resources, Trial

NAME = "search-kernel"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A search's journal, of which only the name counts."""
    return tmp_path / "stem.jsonl"


def opened(journal: Path, name: str = "random", **of: Any) -> Strategy:
    saved = study.Saved(study.beside(journal), NAME)
    return strategies.create(name, problem(**of), saved)


def held(journal: Path) -> optuna.Study:
    """Opens a study as Optuna's own tools do."""
    path = str(study.path_beside(journal))
    storage = optuna.storages.JournalStorage(JournalFileBackend(path))
    return optuna.load_study(study_name=NAME, storage=storage)


def test_optuna_reads_values_and_times(journal: Path) -> None:
    strategy = opened(journal, "grid")
    config = strategy.ask()
    assert config == SMALL[0]
    strategy.tell(good(config))
    [trial] = held(journal).trials
    assert trial.state.name == "COMPLETE"
    assert trial.value == good(config).median_us
    assert trial.user_attrs["config"] == " ".join(f"{k}={v}" for k, v in config.items())
    assert trial.params == config


def test_a_study_of_positions_is_not_continued(journal: Path) -> None:
    """An older tunefa kept positions; all trials are told again from the search's journal."""
    storage = study.beside(journal)
    older = optuna.create_study(storage=storage, study_name=NAME)
    older.ask({p.name: optuna.distributions.IntDistribution(0, 1) for p in problem().parameters})
    strategy = strategies.create("tpe", problem(), study.Saved(storage, NAME))
    config = strategy.ask()
    assert config is not None
    strategy.tell(good(config))
    [trial] = optuna.load_study(study_name=f"{NAME}-2", storage=storage).trials
    assert trial.params == config and len(held(journal).trials) == 1


def test_the_file_beside_a_journal_is_one_of_optunas_and_is_not_locked(journal: Path) -> None:
    strategy = opened(journal)
    path = study.path_beside(journal)
    config = strategy.ask()
    assert config is not None
    path.with_name(f"{path.name}.lock").symlink_to(path)  # another process would wait for it
    strategy.tell(good(config))
    path.with_name(f"{path.name}.lock").unlink()
    (trial,) = held(journal).trials
    assert trial.value is not None and len(trial.params) == len(config)


def test_a_failure_is_a_slow_trial_that_violates_a_constraint(journal: Path) -> None:
    strategy = opened(journal)
    first, second = strategy.ask(), strategy.ask()
    assert first is not None and second is not None
    strategy.tell(good(first))
    strategy.tell(Trial(second, "timeout", "compiling took over 60 s"))
    right, failed = held(journal).trials
    assert right.value is not None and failed.value == 2 * right.value
    assert all(value <= 0 for value in right.constraints.values())
    assert max(failed.constraints.values()) > 0
    assert failed.user_attrs["outcome"] == "timeout: compiling took over 60 s"
    assert held(journal).best_trial.number == right.number


def test_a_trial_is_told_once(journal: Path) -> None:
    strategy = opened(journal)
    config = strategy.ask()
    assert config is not None
    for trial in (good(config), Trial(config, "wrong"), good(SMALL[3]), good(SMALL[3])):
        strategy.tell(trial)
    assert len(held(journal).trials) == len({repr(config), repr(SMALL[3])})


@pytest.mark.parametrize("name", strategies.names())
def test_it_goes_on_with_what_is_there(name: str, journal: Path) -> None:
    """Trials of an earlier process are not repeated; what it had under way is."""
    earlier = opened(journal, name)
    done = [earlier.ask() for _ in range(5)]
    for config in done[:4]:
        assert config is not None
        earlier.tell(good(config))
    later = opened(journal, name)
    for config in done[:4]:
        assert config is not None
        later.tell(good(config))  # as a search that is resumed does
    rest = []
    while (config := later.ask()) is not None:
        rest.append(config)
        later.tell(good(config))
    assert not [config for config in rest if config in done[:4]]
    assert done[4] in rest and len(rest) == len(SMALL) - 4
    complete = [trial for trial in held(journal).trials if trial.state.name == "COMPLETE"]
    assert len(complete) == len(SMALL)


def test_what_a_killed_process_leaves_is_no_obstacle(journal: Path) -> None:
    strategy = opened(journal, "grid")
    strategy.ask()
    path = study.path_beside(journal)
    with open(path, "ab") as file:
        file.write(b'{"op_code": 5, "trial')
    path.with_name(f"{path.name}.lock").symlink_to(path)
    again = opened(journal, "grid")
    assert again.ask() == SMALL[0]
    assert [trial.state.name for trial in held(journal).trials] == ["FAIL", "RUNNING"]


@pytest.mark.parametrize("damage", [b"\0" * 60 + b"\n", b'{"op_code": 4}\n', b"[]\n", b"\xff\n"])
def test_a_damaged_study_gives_way_to_a_new_one(journal: Path, damage: bytes) -> None:
    """The trials that it held are in the search's journal, and told anew."""
    config = opened(journal, "grid").ask()
    assert config is not None
    path = study.path_beside(journal)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], damage, *lines[1:]]))
    damaged = path.read_bytes()
    again = opened(journal, "grid")
    again.tell(good(config))
    assert again.ask() == SMALL[1]
    assert [trial.state.name for trial in held(journal).trials] == ["COMPLETE", "RUNNING"]
    assert path.with_name(f"{path.name}.damaged").read_bytes() == damaged


@pytest.mark.parametrize("name", ["grid", "prior", "tpe"])
def test_trials_of_what_is_no_longer_feasible_are_passed_over(name: str, journal: Path) -> None:
    earlier = opened(journal, name)
    for config in SMALL[:3]:
        earlier.tell(good(config))
    later = opened(journal, name, configs=SMALL[2:])
    rest = []
    while (proposed := later.ask()) is not None:
        rest.append(proposed)
        later.tell(good(proposed))
    assert sorted(map(repr, rest)) == sorted(map(repr, SMALL[3:]))


FULL = """
import resource, signal, sys
from pathlib import Path
from tests.support.sample_problem import good, problem
from tunefa.search import strategies, study
from tunefa.errors import TunefaError
saved = study.Saved(study.beside(Path(sys.argv[1])), "full")
strategy = strategies.create("random", problem(), saved)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
try:
    while True:
        strategy.tell(good(strategy.ask()))
except TunefaError as error:
    print(error)
"""


def test_a_full_disk_is_said_in_a_sentence(journal: Path) -> None:
    command = [sys.executable, "-c", FULL, str(journal)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ
                          | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the study full cannot be written" in done.stdout


def test_what_is_too_large_for_a_memory_violates_it_by_how_much(journal: Path) -> None:
    strategy = opened(journal, memories=("ub", "l1"))
    ended = [
        Trial({}, "compile_failed", "UB", Resources(planned=MemoryPlan({"ub": 0.25, "l1": -0.5}))),
        Trial({}, "ok", "", Resources(planned=MemoryPlan({"ub": -0.1, "l1": -0.5})), 10.0),
        Trial({}, "crashed", "the compiler died"),
    ]
    for trial in ended:
        strategy.tell(replace(trial, config=strategy.ask() or {}))
    assert [trial.constraints for trial in held(journal).trials] == [
        {"failed": -1.0, "ub": 0.25, "l1": -0.5},
        {"failed": -1.0, "ub": -0.1, "l1": -0.5},
        {"failed": 1.0, "ub": 0.0, "l1": 0.0},
    ]
    again: Any = opened(journal, memories=("ub", "l1"))
    assert list(again._candidates.excess.values()) == [0.25]
    assert list(again._candidates.times.values()) == [None, 10.0, None]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match="cannot be written"):
        study.beside(tmp_path / "missing" / "stem.jsonl")


def test_the_samplers_serve_a_study_of_optuna_itself() -> None:
    """Without tunefa's study around them, as in a notebook."""
    from tunefa.search.strategies import prior

    sampler = prior.sampler(problem(FEASIBLE))
    own = optuna.create_study(sampler=sampler)
    best = min(FEASIBLE, key=lambda c: good(c).median_us or 0)

    def objective(trial: optuna.Trial) -> float:
        parameters = problem().parameters
        config = {p.name: trial.suggest_categorical(p.name, p.values) for p in parameters}
        assert config in FEASIBLE
        return good(config).median_us or 0.0

    own.optimize(objective, n_trials=25)
    assert own.best_value <= 1.25 * (good(best).median_us or 0)


def test_what_is_hoped_for_shrinks_as_the_best_is_found() -> None:
    made = strategies.create("prior", problem(FEASIBLE))
    gains: list[float] = []
    for _ in range(24):
        config = made.ask()
        assert config is not None
        made.tell(good(config))
        gains.append(made.hoped_gain(made.best_us) or 0.0)
    assert all(0.0 <= gain < 1.0 for gain in gains)
    assert 0.0 < max(gains[-4:]) < max(gains[:4])
    assert (made.hoped_gain(2.0 * made.best_us) or 0.0) > gains[-1]


def test_nothing_is_hoped_for_where_all_is_tried_and_unknown_without_a_model() -> None:
    everything = strategies.create("prior", problem(SMALL[:3]))
    while (config := everything.ask()) is not None:
        everything.tell(good(config))
    assert everything.hoped_gain(everything.best_us) == 0.0
    assert strategies.create("random", problem(SMALL)).hoped_gain(100.0) is None
