"""tunefa/search/parts.py: what is tried first, and that a search is not worse than no search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.fake_objective import Seen, request, user_store
from tests.support.fixed_store import Fixed
from tunefa import assets
from tunefa.costmodel import anchored
from tunefa.costmodel.estimate import estimates
from tunefa.runtime import choose
from tunefa.search import candidates, kernel_race, parts, race_time
from tunefa.search.budget import Budget
from tunefa.search.gpu_turns import Turns
from tunefa.search.parts import Part
from tunefa.search.request import FinishedTrial, Request
from tunefa.search.state import SearchState
from tunefa.search.winner import Winner
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.space import Feasible
from tunefa.spec.target import Target
from tunefa.spec.trial import Config, Trial, identity
from tunefa.spec.workload import Workload
from tunefa.store import results

H200, H100 = Target.named("h200"), Target.named("h100")
CUDA, TRITON = "attention_fwd_cuda_sm90", "attention_fwd_triton"
WORKLOADS = (
    "b1_h32_kv8_q8192_d128",
    "b4_h32_q4096_d64",
    "b2_h16_q2048_d128_full",
    "b1_h16_q8192_d256",
    "b8_h16_q1024_d128",
    "b2_h24_q4096_d64_full",
    "b1_h40_q2500_d128",
    "b1_h10_q10000_d128_full",
    "b3_h12_q640_d64_full",
    "b2_h18_q3300_d80",
    "b1_h8_q16384_d128_e4m3",
    "b4_h8_q4000_d48",
)
ALONE = "b1_h2_q1024_k16384_d128_full"
"""The default of the CUDA kernel leaves most SMs without work here."""
SMALL = {"WARPGROUPS": 1, "BLOCK_N": 208, "num_stages": 2, "Q_STAGES": 1, "PING_PONG": 0}
"""The config that the model likes there."""
TILE = ("WARPGROUPS", "BLOCK_M", "num_warps")


def asked(text: str, target: Target = H200, only: Sequence[str] = ()) -> Request:
    workload = Workload.parse(text)
    serving = tuple(kernels.serving(workload, target.arch, only))
    return replace(request(*serving), workload=workload, target=target)


def state(search: Request, store: results.Store) -> SearchState:
    nothing = cast(Any, None)
    made = SearchState(search, Seen(), nothing, nothing, None)
    made.anchor = parts.anchor(search, store)
    return made


def neighbours(kernel: Kernel, config: Config) -> Iterator[dict[str, Any]]:
    """The config, and those with another tile."""
    for parameter in (each for each in kernel.space.parameters if each.name in TILE):
        for value in parameter.values:
            yield {**config, parameter.name: value}
    yield {**config, **{name: value for name, value in SMALL.items() if name in config}}


def searched(made: SearchState) -> Winner:
    """The answer of a search that has tried neighbours of each kernel's first config."""
    assert made.anchor is not None
    for name, case in made.anchor.cases.items():
        own = [(name, trial) for trial in tried(made, name)]
        for _, trial in own:
            made.count(name, trial)
        best = anchored.ranked(made.anchor, own)[0][1]
        made.winners.append(Winner(case.kernel, best, None, None))
    found = kernel_race.best(made, made.winners)
    assert found is not None
    return found


def tried(made: SearchState, name: str) -> list[Trial]:
    assert made.anchor is not None
    case, best = made.anchor.cases[name], made.anchor.recommended
    own = best.config if best and best.kernel == name else case.default()
    found = []
    for config in neighbours(case.kernel, own):
        if case.refusal(config) is None:
            expected = made.anchor.expected(name, config)
            found.append(Trial(config, "ok", predicted_us=expected.time_us))
    return found


@pytest.mark.parametrize(
    ("target", "texts"), [(H200, WORKLOADS), (H100, WORKLOADS[::4])], ids=["H200", "H100"]
)
def test_a_predicted_search_is_not_worse_than_no_search(
    target: Target, texts: Sequence[str]
) -> None:
    """It gives what the runtime would choose, or what beats that beyond the error."""
    store, kept = results.Store([assets.root("results")]), []
    for search in [*(asked(text, target) for text in texts), asked(ALONE, target, [CUDA])]:
        made = state(search, store)
        chosen = choose.choose(store, search.workload, target, search.kernels)
        won = searched(made)
        assert made.anchor is not None and won.certificate is not None
        without_us = made.anchor.expected(chosen.kernel, chosen.config).time_us
        assert won.certificate["known"]["config"] == chosen.config
        kept.append(won.certificate["kept"])
        if kept[-1]:
            assert (won.kernel.name, won.trial.config) == (chosen.kernel, chosen.config)
        else:
            assert won.median_us < without_us / (1 + won.certificate["error"])
        record = won.record(search.workload, target.arch, None, {})
        stored = Fixed([*store.records(), record])
        after = choose.choose(stored, search.workload, target, search.kernels)
        assert (after.kernel, after.config) == (won.kernel.name, won.trial.config)
    assert kept[-1] is False and sum(kept) >= len(texts) - 1, kept


def test_the_best_known_config_comes_first() -> None:
    """Its kernel is the first, and its config is tried before the default; few others follow."""
    store = results.Store([assets.root("results")])
    search = asked("b1_h40_q2500_d128")
    made = state(search, store)
    assert made.anchor is not None and made.anchor.recommended is not None
    feasible = {kernel.name: replace_by_few(search, kernel) for kernel in search.kernels}
    first, *others = parts.ordered(made, feasible, store)
    best = made.anchor.recommended
    assert (first.name, first.first[0]) == (best.kernel, best.config)
    assert first.case.default() in first.first and best.config != first.case.default()
    assert len(first.first) <= parts.MOST_FIRST
    assert all(part.first[0] == part.case.default() for part in others)
    assert all(config in part.known for part in (first, *others) for config in part.first)


def replace_by_few(search: Request, kernel: Kernel) -> Any:
    """One config for each kernel: all of them take a while."""
    default = candidates.default(search.case(kernel))
    return Feasible((dict(default or {}),), {})


@pytest.mark.parametrize("chip", ["a100", "rtx 4090"])
def test_where_nothing_is_known_nothing_is_anchored(chip: str) -> None:
    search = asked("q4096_d128", Target.named(chip))
    made = state(search, results.Store([assets.root("results")]))
    assert made.anchor is None
    trial = Trial({}, "ok", predicted_us=5.0)
    found = kernel_race.best(made, [Winner(search.kernels[0], trial, None, None)])
    assert found is not None and found.certificate is not None
    said = str(found.certificate)
    assert f"never compared with a device of {search.target.arch.name}" in said
    assert "spill" not in said
    key = search.kernels[0].name, identity({"BLOCK_M": 1})
    spilling = Trial({"BLOCK_M": 1}, "ok", predicted_us=4.9)
    made.finished[key] = FinishedTrial(search.kernels[0].name, spilling)
    found = kernel_race.best(made, [Winner(search.kernels[0], trial, None, None)])
    assert found is not None and "of those that spill no registers" in str(found.certificate)


def test_what_is_measured_is_not_anchored() -> None:
    search = replace(asked("q4096_d128"), measured=True)
    assert parts.anchor(search, user_store()) is None


def test_times_that_are_known_are_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    search = asked(WORKLOADS[0], only=[CUDA])
    case = search.case(search.kernels[0])
    feasible = case.feasible()
    opened = Trial(case.default(), "ok", samples_us=(200.0,) * 5)
    part = Part(case, feasible, [], [case.default()], [], 1.0, opened)
    hoped_us = parts._hoped_us(None, part, 100.0)
    assert 100.0 < hoped_us < 200.0
    times = [each.time_us for each in estimates(case, feasible.configs)]
    monkeypatch.setattr(parts, "estimates", None)
    assert parts._hoped_us(None, replace(part, expected_us=times), 100.0) == hoped_us


def test_a_model_that_has_the_times_is_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    case = asked(WORKLOADS[0], only=[CUDA]).case(kernels.load(CUDA))
    feasible = Feasible((dict(case.default()),) * 2, {})
    trial = Trial(case.default(), "ok", samples_us=(200.0,) * 5)
    part = Part(case, feasible, [], [case.default()], [], 1.0, trial)
    (own_us, _) = (each.time_us for each in estimates(case, feasible.configs))

    def hoped_us(has_times: bool) -> float:
        model: Any = SimpleNamespace(
            has_times=lambda case: has_times, expected_us=lambda *_: [0.8 * own_us, own_us]
        )
        return parts._hoped_us(model, part, 100.0)

    assert hoped_us(False) == 200.0, "it is not waited for"
    monkeypatch.setattr(parts, "estimates", None)
    assert hoped_us(True) == pytest.approx(0.8 * 200.0)


def opened(search: Request, name: str, us: float) -> Part:
    """The part of a kernel whose default takes so long."""
    case = search.case(kernels.load(name))
    trial = Trial(case.default(), "ok", samples_us=(us,) * 5)
    return Part(case, case.feasible(), [], [case.default()], [], 1.0, trial)


def test_a_search_that_shares_its_gpu_leaves_what_its_races_need() -> None:
    search = asked(WORKLOADS[0], only=[CUDA, TRITON])
    search = replace(search, measured=True, budget=Budget(seconds=20.0))
    made = SearchState(search, Seen(), *cast(Any, (None, None, None)))

    def ends(us: float) -> list[float]:
        found = [opened(search, CUDA, us), opened(search, TRITON, 9 * us)]
        return [part.share for part in parts.by_lead(made, found)]

    alone = ends(20.0)
    assert alone == ends(20e3), "it leaves some seconds"
    made.turn = Turns().new("a", 1.0)
    short, long = ends(20.0), ends(4e3)
    assert short[0] < short[1] and all(a < b for a, b in zip(alone, short, strict=True))
    assert long[0] < short[0]
    assert ends(1e6)[0] > 0.0, "it searches all the same"
    made.turn.raced(10.0, 40.0)
    assert ends(4e3)[0] < long[0], "races took longer than was thought"


def test_the_reserve_is_what_the_race_of_the_best_takes() -> None:
    search = replace(asked(WORKLOADS[0], only=[CUDA]), measured=True)
    made = SearchState(search, Seen(), *cast(Any, (None, None, None)))
    part = opened(search, CUDA, 2e3)
    assert parts.reserve_s(made, part, 7.0, 10) == 7.0
    made.turn = Turns().new("a", 1.0)
    found = parts.reserve_s(made, part, 7.0, 10)
    assert found == pytest.approx(race_time.race_s(search.workload, 2e3, 10))
    assert parts.reserve_s(made, replace(part, opened=None), 7.0, 10) == 7.0
