"""tunefa/search/default_first.py: every search begins with the default; the objective is a fake."""

from __future__ import annotations

import pytest

from tests.support.clock import Clock
from tests.support.fake_objective import KERNEL, SM90, WORKLOAD, Fake, request, user_store
from tests.support.own_kernels import OwnKernels
from tunefa.search import run as search
from tunefa.search import strategies
from tunefa.search.budget import Budget
from tunefa.search.default_first import DefaultFirst
from tunefa.spec.trial import Config, Trial, identity


@pytest.mark.parametrize("strategy", strategies.names())
def test_the_default_is_tried_first_by_every_strategy(fake: type[Fake], strategy: str) -> None:
    """It is proposed once only, also where the strategy comes to it later."""
    asked = request(budget=Budget(trials=4), strategy=strategy)
    tried = [f.trial.config for f in search.search(asked, user_store()).finished]
    assert tried[0] == KERNEL.default(WORKLOAD, SM90)
    assert len({identity(config) for config in tried}) == 4


def test_every_kernel_tries_its_default_however_small_the_budget(
    fake: type[Fake], own_kernels: OwnKernels, clock: Clock
) -> None:
    """The first two are wrong in it: one trial, or one second, of the third makes a record."""
    kernels = [own_kernels.add_attention(f"tiny_{letter}") for letter in "abc"]
    failing = {"tiny_a", "tiny_b"}
    fake.judge = lambda self, config: (  # type: ignore[assignment, misc]
        "compile_failed" if self.kernel.name in failing else 100.0
    )
    fake.pause_s = 0.25
    for budget in (Budget(trials=1), Budget(seconds=1.0)):
        result = search.search(request(*kernels, budget=budget), user_store())
        tried = {f.kernel: f.trial.config for f in reversed(result.finished)}
        assert tried == {kernel.name: kernel.default(WORKLOAD, SM90) for kernel in kernels}
        assert result.record is not None and result.record.kernel == "tiny_c"


class Fixed:
    """Proposes three configs, in order."""

    def __init__(self) -> None:
        self.left: list[Config] = [{"A": 2}, {"A": 1}, {"A": 3}]

    def ask(self, compiled: bool = False) -> Config | None:
        return self.left.pop(0) if self.left else None

    def tell(self, trial: Trial) -> None:
        pass


def test_several_configs_may_come_first() -> None:
    strategy = DefaultFirst(Fixed(), [{"A": 1}, {"A": 4}])
    asked = [strategy.ask() for _ in range(5)]
    assert asked == [{"A": 1}, {"A": 4}, {"A": 2}, {"A": 3}, None]


def test_what_comes_first_may_need_a_compiler() -> None:
    strategy = DefaultFirst(Fixed(), [{"A": 1}])
    assert [strategy.ask(compiled=True) for _ in range(3)] == [{"A": 2}, {"A": 3}, None]
    assert strategy.ask() == {"A": 1}
