"""tunefa/sweep/slice_result.py: what the study is told of a result."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.fake_objective import KERNEL, Fake, by_tile, request, user_store
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.spec import kernel as kernels
from tunefa.spec.trial import Config, Outcome, Resources
from tunefa.store import document
from tunefa.sweep import slice_result


def wrong(config: Config) -> Outcome:
    return "wrong"


def test_it_is_plain_data_with_the_record(fake: type[Fake]) -> None:
    fake.judge = staticmethod(by_tile)
    asked = request(budget=Budget(trials=30), strategy="random", sweep="s")
    result = search.search(asked, user_store())
    told = json.loads(json.dumps(slice_result.told(result, 10, 20.0, 33.0)))
    assert (told["used"], told["at"], told["trials"]) == (20.0, 33.0, 30)
    assert document.from_text(told["record"], "x") == [result.record]
    default = KERNEL.default(result.request.workload, result.request.target.arch)
    assert told["default_us"] == by_tile(default) >= told["best_us"]
    assert told["journal"] == str(result.journal) and told["settled"] is False


@pytest.mark.parametrize(
    ("earlier", "amount", "settled"),
    [(0, 30.0, False), (0, 60.0, True), (30, 16.0, True)],
)
def test_a_search_that_ended_early_or_tried_nothing_has_nothing_left(
    fake: type[Fake], earlier: int, amount: float, settled: bool
) -> None:
    fake.judge = staticmethod(by_tile)
    asked = request(budget=Budget(trials=30), strategy="random")
    result = search.search(asked, user_store())
    assert slice_result.told(result, earlier, amount, 0.0)["settled"] is settled
    stopped = replace(result, interrupted=True)
    assert slice_result.told(stopped, earlier, amount, 0.0)["settled"] is False


def test_without_a_record_there_is_no_time(fake: type[Fake]) -> None:
    fake.judge = staticmethod(wrong)
    result = search.search(request(), user_store())
    told = slice_result.told(result, 0, 6.0, 0.0)
    assert told["best_us"] is None and told["default_us"] is None and "record" not in told


def test_a_default_that_spills_takes_its_own_time(fake: type[Fake]) -> None:
    """The model's doubt about spills decides who wins, and is no time."""
    result = search.search(request(), user_store())
    default = KERNEL.default(result.request.workload, result.request.target.arch)
    spilling = Resources(smem_bytes=1, registers=255, spill_bytes=24, stack_bytes=0)
    finished = tuple(
        replace(each, trial=replace(each.trial, resources=spilling))
        for each in result.finished
        if each.trial.config == default
    )
    assert slice_result.default_us(replace(result, finished=finished)) == 100.0


def test_without_the_default_of_its_kernel_a_record_saves_an_unknown_time(
    fake: type[Fake],
) -> None:
    other = kernels.load("attention_fwd_gluon_sm90")
    result = search.search(request(KERNEL, other, budget=Budget(trials=12)), user_store())
    assert result.record is not None and slice_result.default_us(result) == 100.0
    case = result.request.case(next(k for k in (KERNEL, other) if k.name == result.record.kernel))
    without = tuple(
        each
        for each in result.finished
        if each.kernel != result.record.kernel or each.trial.config != case.default()
    )
    assert len(without) < len(result.finished)
    assert slice_result.default_us(replace(result, finished=without)) is None


def test_it_is_settled_where_every_kernel_is(fake: type[Fake]) -> None:
    result = search.search(request(), user_store())
    assert not slice_result.is_settled(result)
    assert slice_result.is_settled(replace(result, settled={KERNEL.name: 3}))
    assert slice_result.is_settled(replace(result, left_early={KERNEL.name: 0.3}))
    only = {KERNEL.name: replace(result.feasible[KERNEL.name], configs=())}
    assert slice_result.is_settled(replace(result, feasible=only))
