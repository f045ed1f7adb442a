"""benchmarks/portfolio.py: the landscapes by kernel, and races of a portfolio."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import portfolio as benchmark
from benchmarks.landscape import FOLDER
from tests.support.fake_objective import KERNEL, Fake
from tests.support.sample_landscapes import CONFIGS
from tests.support.sample_portfolios import journals
from tunefa.compile.launch import driver
from tunefa.measure.objective import Raced
from tunefa.spec.trial import Config, Trial
from tunefa.store import landscape, portfolio
from tunefa.store.portfolio import Choices, Portfolio


class Racing(Fake):
    """Config 1 takes 3 us more in every round, and drops out of the race after the first."""

    late = False

    def next(self, wait_s: float = math.inf) -> Trial | None:
        return None if self.late else super().next(wait_s)

    def race(
        self, trials: Iterable[Trial], default: Config | None, until: float = math.inf
    ) -> Raced:
        raced = [
            replace(trial, samples_us=(103.0,) if trial.config == CONFIGS[1] else (100.0, 200.0))
            for trial in trials
        ]
        return Raced(raced, raced[0], {"noise_floor": 0.004})


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Portfolio:
    """A portfolio in which config 1 serves two workloads; it is the best of the second only."""
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    read = [landscape.load(path) for path in journals()]
    return Choices(read[0].target, portfolio.measured(read)).within(0.02)


def test_only_workloads_whose_best_is_another_config_race(chosen: Portfolio) -> None:
    first, second, third = benchmark.races(chosen, 9.0, 1, Racing)
    assert (first.best_us, first.portfolio_us, first.noise) == (150.0, 103.0, 0.004)
    assert first.regret == pytest.approx(0.03) and first.recorded == pytest.approx(0.015)
    assert second.remark == third.remark == "the same config"
    said = benchmark.race_table(chosen, [first, second, third], KERNEL.name)
    assert "2 configs for 3 workloads within 2%; 1 workloads raced, at most 3.0% slower" in said
    assert "| b1 h8/2 s1024 d64 causal | 150.0 | 103.0 | +1.5% | +3.0% | 0.4% |" in said
    assert "| b1 h8/2 s2048 d64 causal |  |  | +0.0% | the same config |  |" in said


def test_what_cannot_race_says_why(chosen: Portfolio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Racing, "late", True)
    assert benchmark.races(chosen, 9.0, 1, Racing)[0].remark == "the time was over"
    monkeypatch.undo()
    monkeypatch.setattr(Racing, "judge", staticmethod(lambda config: "compile_failed"))
    assert benchmark.races(chosen, 9.0, 1, Racing)[0].remark == "compile_failed: because"


def test_two_configs_of_one_program_have_no_race(
    chosen: Portfolio, monkeypatch: pytest.MonkeyPatch
) -> None:
    def race(self: Any, trials: Iterable[Trial], *_: Any) -> Raced:
        first, second = trials
        return Raced([replace(first, samples_us=(1.0,)), second])

    monkeypatch.setattr(Racing, "race", race)
    assert benchmark.races(chosen, 9.0, 1, Racing)[0].remark == "one program"


def test_the_landscapes_have_a_kernel_whose_bound_needs_no_more_measurements() -> None:
    (key,) = found = benchmark.by_kernel([FOLDER])
    assert key == ("attention_fwd_triton", "NVIDIA H200")
    said = benchmark.summary(found)
    assert "| attention_fwd_triton, NVIDIA H200 | 8 | 6,874 | 100% |" in said
    chosen = found[key].within(0.02)
    assert chosen.is_exact and found[key].least_possible(0.02) == chosen.bound
    assert max(chosen.regrets) <= 0.02


def test_a_race_without_a_gpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "devices", list)
    monkeypatch.setattr("sys.argv", ["portfolio", "--measure", "attention_fwd_triton"])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "--measure needs a GPU, and this machine has none" in capsys.readouterr().err
