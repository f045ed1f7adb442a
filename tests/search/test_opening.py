"""tunefa/search/opening.py: the kernel whose default leads gets most of the time of a search.

Kernels, spaces and the cost model are real; times are like those of an H200, on a simulated clock.
"""

from __future__ import annotations

import pytest

from tests.support.clock import Clock
from tests.support.fake_objective import Seen, user_store
from tests.support.simulated_device import Machine, Simulated
from tunefa.measure import measured
from tunefa.search import opening, run
from tunefa.search.budget import Budget
from tunefa.search.request import Request, Result
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

H200 = Target.named("h200")
WORKLOAD = Workload.parse("bwd_b4_h16_q4096_d128_bf16_full")
GLUON, TRITON = "attention_bwd_two_pass_gluon_sm90", "attention_bwd_triton"
CUDNN, FA2 = "attention_bwd_cudnn", "attention_bwd_fa2"
TIMES_US = {GLUON: (1247.0, 1250.0), CUDNN: (1465.0,) * 2, TRITON: (1770.0, 1800.0),
               FA2: (2557.0,) * 2}  # fmt: skip
COMPILE_S = {GLUON: 5.0, TRITON: 5.0}


@pytest.fixture
def machine(
    monkeypatch: pytest.MonkeyPatch, no_waiting_for_the_disk: None, remembered: None, clock: Clock
) -> Machine:
    made = Machine(dict(TIMES_US), COMPILE_S)
    monkeypatch.setattr(Simulated, "machine", made, raising=False)
    monkeypatch.setattr(measured, "objective", lambda arch, mode: Simulated)
    monkeypatch.setattr(opening, "warm_up", lambda *_: None)
    return made


def searched(budget: str, clock: Clock, *names: str) -> tuple[Result, dict[str, int], Seen]:
    """The result of a search that began 4 s ago, and the number of configs by kernel."""
    asked = Request(WORKLOAD, H200, True, tuple(map(kernels.load, names)), Budget.parse(budget),
                    workers=16)  # fmt: skip
    clock.sleep(4.0)
    seen = Seen()
    result = run.search(asked, user_store(), seen)
    counts = {name: sum(each.kernel == name for each in result.finished) for name in names}
    return result, counts, seen


@pytest.mark.parametrize("budget", ["40s", "45s"])
def test_the_kernel_that_leads_gets_most_of_the_time(
    machine: Machine, clock: Clock, budget: str
) -> None:
    result, counts, seen = searched(budget, clock, GLUON, TRITON, CUDNN, FA2)
    assert counts[GLUON] >= 40 and counts[TRITON] == counts[CUDNN] == counts[FA2] == 1
    assert next(each.kernel for each in seen.reports if each.stage == "race") == GLUON
    assert result.record is not None and result.record.kernel == GLUON
    assert {*result.left_early} == {TRITON, CUDNN, FA2}
    assert result.elapsed_s <= (result.request.budget.seconds or 0.0)


def test_a_kernel_that_leads_against_the_model_is_searched_first(
    machine: Machine, clock: Clock
) -> None:
    machine.us[TRITON] = 1000.0, 950.0
    result, counts, seen = searched("60s", clock, GLUON, TRITON, CUDNN)
    assert next(each.kernel for each in seen.reports if each.stage == "race") == TRITON
    assert counts[TRITON] > 60 and counts[GLUON] <= 16
    assert result.record is not None and result.record.kernel == TRITON


def test_kernels_that_are_near_share_the_budget(machine: Machine, clock: Clock) -> None:
    machine.us[TRITON] = 1300.0, 1200.0
    result, counts, _ = searched("75s", clock, GLUON, TRITON)
    assert counts[GLUON] > counts[TRITON] > 16
    assert result.record is not None and result.record.kernel == TRITON


def test_a_slow_kernel_gets_a_look_where_time_is_left(machine: Machine, clock: Clock) -> None:
    """The leader ends on its plateau, and the model may be wrong about the other one."""
    machine.compile_s = {GLUON: 1.0, TRITON: 1.0}
    _, counts, _ = searched("10m", clock, GLUON, TRITON)
    assert counts[GLUON] > 60 and counts[TRITON] == 16


def test_a_default_that_fails_is_no_reason_to_give_up_its_kernel(
    machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.us[TRITON] = float("inf"), 900.0
    result, counts, _ = searched("75s", clock, GLUON, TRITON)
    assert counts[GLUON] > 1 and counts[TRITON] > 16
    assert result.record is not None and result.record.kernel == TRITON


def test_a_default_that_compiles_for_long_takes_no_time_of_the_leader(
    machine: Machine, clock: Clock
) -> None:
    machine.compile_s = {GLUON: 1.0, TRITON: 58.0}
    result, counts, _ = searched("60s", clock, GLUON, TRITON, CUDNN, FA2)
    assert counts[GLUON] > 16
    assert result.record is not None and result.record.kernel == GLUON


def test_a_budget_of_trials_is_the_leaders_too(machine: Machine, clock: Clock) -> None:
    _, counts, _ = searched("30", clock, GLUON, TRITON, CUDNN)
    assert counts == {GLUON: 28, TRITON: 1, CUDNN: 1}


def test_a_library_that_leads_leaves_the_budget_to_those_that_may_win(
    machine: Machine, clock: Clock
) -> None:
    machine.us[CUDNN] = 1200.0, 1200.0
    result, counts, _ = searched("60s", clock, GLUON, TRITON, CUDNN)
    assert counts[GLUON] >= 40 and counts[TRITON] <= 16
    assert result.record is not None and result.record.kernel == CUDNN
