"""tunefa/search/preparation.py: what is compiled and tried before a search has the GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_objective import Seen, request
from tunefa.compile import pool
from tunefa.compile.pool import Rank
from tunefa.compile.workers import Workers
from tunefa.search import preparation
from tunefa.search.budget import Budget
from tunefa.search.gpu_turns import Turns
from tunefa.search.parts import Part
from tunefa.search.preparation import Preparation
from tunefa.search.state import SearchState
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.space import Feasible
from tunefa.spec.trial import Config, Trial

QUICK, SLOW = map(kernels.load, ("attention_fwd_cuda_sm80", "attention_fwd_triton"))
DEFAULT = -1
"""Configs are numbers here, and this is the default of each kernel."""


class Compiles:
    """Is prepared when it is said to be."""

    def __init__(self) -> None:
        self.us = 100.0
        self.begun: list[int] = []
        self.compiled: set[int] = set()
        self.tried: list[int] = []

    def prepare(self, config: Config, compilers: Workers) -> None:
        self.begun.append(config["A"])

    def is_prepared(self, config: Config) -> bool:
        assert config["A"] not in self.tried, "it is prepared no more"
        return config["A"] in self.compiled

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        self.tried.append(config["A"])

    def next(self, wait_s: float) -> Trial | None:
        if wait_s < 1.0:
            return None
        number = self.tried[-1]
        return Trial({"A": number}, "ok", samples_us=(self.us,))


class Told:
    """A strategy that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def tell(self, trial: Trial) -> None:
        self.told.append(trial.config["A"])


def prepared(compilers: Workers, *own: Kernel, budget: Budget | None = None) -> Preparation:
    """The preparation of a search of these kernels, which waits beside two others."""
    asked = request(*own, measured=True, budget=budget or Budget(seconds=6.0))
    gpu_turns, nothing = Turns(), SimpleNamespace(append=lambda *_: None)
    state = SearchState(asked, Seen(), nothing, nothing, None)  # type: ignore[arg-type]
    state.turn, *_ = [gpu_turns.new(name, 1.0) for name in "abc"]
    parts = [Part(asked.case(k), Feasible((), {}), [], [{"A": DEFAULT}], [], 1.0) for k in own]
    entrants: Any = [(part, Compiles()) for part in parts]
    return Preparation(state, compilers, entrants)


def objective(of: Preparation, kernel: Kernel) -> Compiles:
    found: Any = dict((part.name, each) for part, each in of.entrants)
    made: Compiles = found[kernel.name]
    return made


def add(to: Preparation, kernel: Kernel, count: int) -> None:
    """Adds so many configs, from 0 on."""
    to.add(to.parts[kernel.name], [{"A": number} for number in range(count)])


def test_a_part_of_the_compilers_prepares_until_the_search_has_the_gpu() -> None:
    with Workers(9) as compilers:
        made = prepared(compilers, QUICK)
        seen = objective(made, QUICK)
        assert not made.is_enough() and seen.begun == [DEFAULT], "before others are known"
        seen.compiled.add(DEFAULT)
        add(made, QUICK, 12)
        assert not made.is_enough() and seen.begun == [DEFAULT, 0, 1, 2]
        seen.compiled |= {0, 1}
        assert not made.is_enough() and seen.begun == [DEFAULT, 0, 1, 2, 3, 4]
        seen.compiled |= {2, 3}
        assert made.is_enough(), "half of what the leader has"
        made.begin_all()
        assert seen.begun == [DEFAULT, *range(12)]


def test_a_search_alone_has_more_of_the_compilers() -> None:
    with Workers(9) as compilers:
        made = prepared(compilers, QUICK)
        assert made._state.turn is not None
        _, *others = made._state.turn._turns._turns
        objective(made, QUICK).compiled.add(DEFAULT)
        made.is_enough()
        add(made, QUICK, 12)
        for expected, other in ((3, None), (4, others[0]), (9, others[1])):
            if other is not None:
                other.end()
            made.is_enough()
            assert len(objective(made, QUICK).begun) == 1 + expected
        assert made._state.turn.searches == 1


def test_a_small_kernel_is_ready_with_half_of_its_configs() -> None:
    with Workers(9) as compilers:
        made = prepared(compilers, QUICK)
        add(made, QUICK, 2)
        objective(made, QUICK).compiled.add(DEFAULT)
        made.is_enough()
        assert not made.is_enough()
        objective(made, QUICK).compiled.add(0)
        assert made.is_enough()


def test_a_default_that_compiles_for_long_keeps_no_compiler_from_others() -> None:
    with Workers(30) as compilers:
        made = prepared(compilers, SLOW, QUICK)
        slow, quick = objective(made, SLOW), objective(made, QUICK)
        for kernel in (SLOW, QUICK):
            add(made, kernel, 4)
        quick.compiled.update(range(DEFAULT, 4))
        for _ in range(3):
            assert not made.is_enough(), "each default must be compared"
        assert slow.begun == [DEFAULT] and quick.begun == [DEFAULT, 0, 1, 2, 3]
        slow.compiled.add(DEFAULT)
        assert made.is_enough() and slow.begun == [DEFAULT, 0, 1, 2, 3]


def test_what_is_compiled_is_tried_and_known_in_its_turn() -> None:
    with Workers(30) as compilers:
        made = prepared(compilers, SLOW, QUICK)
        slow, quick = objective(made, SLOW), objective(made, QUICK)
        slow.us = 90.0
        made.is_enough()
        assert not made.has_untried()
        quick.compiled.add(DEFAULT)
        made.try_one()
        assert (quick.tried, slow.tried) == ([DEFAULT], []) and not made.has_untried()
        told = Told()
        made.parts[QUICK.name] = _with_strategy(made.parts[QUICK.name], told)
        for kernel in (SLOW, QUICK):
            add(made, kernel, 1)
        made.is_enough()
        quick.compiled.add(0)
        slow.compiled |= {DEFAULT, 0}
        made.is_enough()
        for expected in ([DEFAULT], [DEFAULT, 0]):
            made.try_one()
            assert slow.tried == expected, "a default first, then the kernel that was the fastest"
        made.try_one()
        assert quick.tried == [DEFAULT, 0] and not made.has_untried() and made.is_enough()
    part = next(part for part, _ in made.entrants if part.name == QUICK.name)
    assert part.opened is not None and [trial.config["A"] for trial in part.early] == [0]
    assert [trial.config["A"] for trial in part.tried] == [DEFAULT, 0] and told.told == [0]
    assert len(made._state.finished) == 4


def _with_strategy(part: Part, strategy: Any) -> Part:
    return Part(**{**vars(part), "strategy": strategy})


def test_a_default_is_tried_before_more_is_asked_for() -> None:
    asked: list[tuple[str, int, bool]] = []

    def ask(part: Part, count: int) -> tuple[Part, list[Config]]:
        asked.append((part.name, count, part.opened is not None))
        return part, [{"A": number} for number in range(count)]

    with Workers(30) as compilers:
        made = prepared(compilers, QUICK, SLOW)
        made.choose([(QUICK.name, 2), (SLOW.name, 1)], ask)
        objective(made, QUICK).compiled.add(DEFAULT)
        assert not made.is_enough() and made.is_choosing and made.has_untried()
        assert asked == [(QUICK.name, 2, False)]
        made.try_one()
        objective(made, QUICK).compiled |= {0, 1}
        objective(made, SLOW).compiled |= {DEFAULT, 0}
        made.is_enough()
        assert asked[1:] == [(SLOW.name, 1, False)] and not made.is_choosing
        assert made.is_enough()


def test_defaults_are_tried_while_the_model_is_asked() -> None:
    known: set[str] = set()
    model = SimpleNamespace(has_times=lambda case: case.kernel.name in known)
    with Workers(30) as compilers:
        made = prepared(compilers, QUICK, SLOW)
        made._state.model = model  # type: ignore[assignment]
        made.choose([(QUICK.name, 1), (SLOW.name, 1)], lambda part, count: (part, [{"A": 0}]))
        quick, slow = objective(made, QUICK), objective(made, SLOW)
        quick.compiled.add(DEFAULT)
        assert not made.is_enough() and made.is_choosing and made.has_untried()
        made.try_one()
        known.add(SLOW.name)
        slow.compiled.add(DEFAULT)
        assert not made.is_enough() and made.is_choosing
        assert (quick.begun, slow.begun) == ([DEFAULT], [DEFAULT, 0])
        known.add(QUICK.name)
        made.is_enough()
        assert quick.begun == [DEFAULT, 0] and not made.is_choosing


def test_all_is_asked_for_at_once_while_nothing_can_be_tried() -> None:
    asked: list[str] = []

    def ask(part: Part, count: int) -> tuple[Part, list[Config]]:
        asked.append(part.name)
        return part, []

    with Workers(30) as compilers:
        made = prepared(compilers, QUICK, SLOW)
        made.choose([(QUICK.name, 2), (SLOW.name, 1)], ask)
        assert not made.is_enough() and asked == [QUICK.name, SLOW.name]


def test_a_trial_that_has_no_time_to_end_is_none() -> None:
    with Workers(9) as compilers:
        made = prepared(compilers, QUICK)
        assert made._state.turn is not None
        made._state.turn._turns.left_s = lambda: 0.5
        objective(made, QUICK).compiled.add(DEFAULT)
        made.is_enough()
        made.try_one()
        assert made.parts[QUICK.name].tried == [] and not made._state.finished
        assert not made.has_untried() and made.is_enough()


def test_nothing_is_tried_before_its_turn_where_trials_are_the_budget() -> None:
    with Workers(9) as compilers:
        made = prepared(compilers, QUICK, budget=Budget(trials=4))
        objective(made, QUICK).compiled.add(DEFAULT)
        made.is_enough()
        assert not made.has_untried()


def test_compilers_begin_with_defaults_before_configs_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(pool.CompilePool, "begin", lambda self, config: begun.append(config))
    cases = [request(QUICK, measured=True).case(QUICK)]
    with Workers(1) as compilers:
        preparation.begin_defaults(cases, compilers)
    assert begun == [cases[0].default()]
