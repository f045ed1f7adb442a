"""benchmarks/portfolio.py on a device: a workload's best config races that of its portfolio."""

from __future__ import annotations

import pytest

from benchmarks import portfolio as benchmark
from tests.support.gpu_kernels import seen_target
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.trial import Trial, identity
from tunefa.spec.workload import Workload
from tunefa.store.portfolio import Choices, Measured

pytestmark = pytest.mark.gpu

KERNEL = "attention_fwd_triton"


def test_two_configs_of_a_workload_race() -> None:
    """The second config is said to be 1 % slower than the default for one workload, and is the best
    for the other; so it serves both."""
    target, rows = seen_target(), []
    for text, times in (("b2_h8_q1024_d64_full", (100.0, 101.0)), ("b4_h8_q1024_d64_full", (9, 5))):
        workload = Workload.parse(text)
        case = Case(kernels.load(KERNEL), workload, target)
        default = dict(case.default())
        other = next(
            config
            for config in case.feasible().configs
            if config["BLOCK_N"] == 32 and config["num_warps"] == 4 and config["BLOCK_M"] == 64
        )
        keys = [(KERNEL, identity(config)) for config in (default, other)]
        timed = dict(zip(keys, map(float, times), strict=True))
        trials = dict(zip(keys, [Trial(default, "ok"), Trial(other, "ok")], strict=True))
        rows.append(Measured(workload, "graph", timed, trials, frozenset(), {KERNEL: {}}))
    chosen = Choices(target, rows).within(0.02)
    assert len(chosen.configs) == 1
    raced, same = benchmark.races(chosen, 30.0, 2)
    assert same.remark == "the same config"
    assert not raced.remark and raced.regret is not None and -0.5 < raced.regret < 5.0
    assert raced.best_us and raced.portfolio_us and raced.noise is not None and raced.noise < 0.5
