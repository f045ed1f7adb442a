"""tunefa/sweep/requests.py: the items of a sweep, and their searches."""

from __future__ import annotations

from dataclasses import replace

from tests.support.fake_objective import Fake, by_tile, user_store
from tests.support.sweeping import KERNEL, plan
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.sweep.requests import PROMISE, Items, Requests, searched, serving

H200, A100 = Target.named("h200"), Target.named("a100")


def test_items_are_workloads_by_chip_and_what_no_kernel_serves_is_named() -> None:
    weights = {Workload.parse("q512"): 2.0, Workload.parse("decode_k512_h8_kv1_sinks"): 1.0}
    found = Items.of(plan(weights=weights), [H200, A100])
    assert {each.target for each in found.items} <= {H200, A100} and found.items
    assert len(found.items) + len(found.refused) == 4
    assert all("no kernel serves" in why for why in found.refused.values())
    begin = found.begin({PROMISE + found.items[0].key: 0.3})
    assert [each.key for each in begin] == [each.key for each in found.items]
    assert {each.workload.op for each in begin} == {"fwd"} and begin[0].weight == 2.0
    assert begin[0].promise == 0.3 and begin[-1].promise is None
    assert begin[0].least == 0.0
    assert found.begin({}, {begin[0].key: 4.0})[0].least == 4.0


def test_a_workload_larger_than_the_memory_is_left_out() -> None:
    found = Items.of(plan(weights={Workload.parse("b4096_q65536"): 1.0}), [H200])
    assert not found.items and "needs" in next(iter(found.refused.values()))


def test_the_items_of_a_study_are_on_the_chips_of_its_slices() -> None:
    asked = plan(targets=())
    key = Items.of(plan(), [H200]).items[0].key
    found = Items.on(asked, {key}, {})
    assert key in {each.key for each in found.items} and len(found.items) == 3
    refused = found.items[1].key
    left = Items.on(asked, {key}, {refused: "why"})
    assert refused not in {each.key for each in left.items}
    other = Items.on(asked, {key.replace("H200", "H200 of a Friend")}, {})
    assert other.items[0].target.device.name == "NVIDIA H200 of a Friend"


def test_of_libraries_one_counts_among_the_kernels_that_race() -> None:
    item = Items.of(plan(weights={Workload.parse("q4096"): 1.0}), [H200]).items[0]
    kernels = serving(plan(kernels=()), item.workload, H200)
    own = [each for each in kernels if not each.is_library]
    assert len(kernels) > len(own) + 1 == searched(plan(kernels=()), item)
    assert searched(plan(), item) == 1


def test_a_search_continues_those_of_its_sweep_only(fake: type[Fake]) -> None:
    fake.judge = staticmethod(by_tile)
    asked = plan()
    item = Items.of(asked, [H200]).items[0]
    first = Requests(asked, "sweep-a", 2).of(item, Budget(trials=4))
    assert first.resume is None and [each.name for each in first.kernels] == [KERNEL]
    result = search.search(first, user_store())
    again = Requests(asked, "sweep-a", 2).of(item, Budget(trials=8))
    assert again.resume == result.journal
    assert Requests(asked, "sweep-b", 2).of(item, Budget(trials=8)).resume is None
    assert search.search(again, user_store()).journal == result.journal
    other = Items.of(asked, [H200]).items[1]
    assert Requests(asked, "sweep-a", 2).of(other, Budget(trials=8)).resume is None


def test_a_decode_is_timed_in_steps_unless_a_mode_is_given() -> None:
    weights = {Workload.parse("decode_k512"): 1.0, Workload.parse("q512"): 1.0}
    asked = plan(weights=weights, kernels=())
    modes = [Requests(asked, "s", 2).of(each, Budget(trials=4)).mode
             for each in Items.of(asked, [H200]).items]  # fmt: skip
    assert modes == ["step", "eager"]
    item = Items.of(asked, [H200]).items[0]
    assert Requests(replace(asked, mode="eager"), "s", 2).of(item, Budget(trials=4)).mode == "eager"


def test_a_kernel_that_is_not_there_is_named() -> None:
    found = Items.of(plan(kernels=("nonsense",)), [H200])
    assert not found.items
    assert all("unknown kernel 'nonsense'" in why for why in found.refused.values())
