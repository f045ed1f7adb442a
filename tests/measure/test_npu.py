"""tunefa/measure/npu.py: what becomes of configs for NPUs; the compiler is a fake."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from tests.support.fake_objective import user_store
from tunefa.compile.pool import CompilePool, Pending, Rank
from tunefa.costmodel import npu as npu_model
from tunefa.measure.npu import Estimated, Modelled
from tunefa.search import candidates, strategies
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.search.request import Request
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, MemoryPlan, Outcome, Resources, Trial
from tunefa.spec.workload import Workload

B3 = Target.named("ascend910b3")
KERNEL = kernels.load("attention_fwd_ascend")
WORKLOAD = Workload.parse("h8_q2048_d64_fp16_full")
CASE = Case(KERNEL, WORKLOAD, B3)
DEFAULT = CASE.default()
FITS = Resources(ub_bytes=100, planned=MemoryPlan({"ub": -0.5, "l1": -0.5, "l0c": -0.5}), code="ab")


@pytest.fixture
def modelled() -> Iterator[Modelled]:
    objective = Modelled(CASE, 1)
    with objective:
        yield objective


def config(**changes: int) -> Config:
    return {**DEFAULT, **changes}


def expected_us(of: Config) -> float:
    return npu_model.time_us(WORKLOAD, B3.device, CASE.npu_tiling(of))


def test_what_fits_gets_the_laws_time(modelled: Modelled) -> None:
    judged = modelled.judge(Trial(DEFAULT, "ok", resources=FITS))
    assert judged.predicted_us == expected_us(DEFAULT)


def test_a_failure_stays_what_it_is(modelled: Modelled) -> None:
    failed = Trial(DEFAULT, "compile_failed", "UB overflow", FITS)
    assert modelled.judge(failed) is failed


def test_a_flag_that_the_compiler_cleared_counts_as_cleared(modelled: Modelled) -> None:
    changed = replace(FITS, planned=MemoryPlan({}, {"enable-auto-multi-buffer": False}))
    judged = modelled.judge(Trial(DEFAULT, "ok", resources=changed))
    assert judged.predicted_us == expected_us(config(MULTIBUFFER=0)) != expected_us(DEFAULT)


def test_of_equals_the_default_then_the_first_of_the_space_wins(modelled: Modelled) -> None:
    parts = [Trial(config(TILE_MIX_VECTOR_LOOP=v), "ok", predicted_us=5.0) for v in (8, 4, 1, 2)]
    winner = modelled.race(parts, DEFAULT).winner
    assert winner is not None and winner.config == DEFAULT
    winner = modelled.race(parts[:3], DEFAULT).winner
    assert winner is not None and winner.config["TILE_MIX_VECTOR_LOOP"] == 1
    assert modelled.race([], DEFAULT).winner is None


# ------------------------------------------------------------------------------------- estimates


def test_an_estimate_says_what_fits() -> None:
    with Estimated(CASE) as objective:
        objective.submit(DEFAULT)
        objective.submit(config(BLOCK_M=256, BLOCK_N=112))
        fits, over = objective.next(), objective.next()
    assert fits is not None and fits.predicted_us == expected_us(DEFAULT)
    assert over is not None and over.outcome == "refused" and over.predicted_us is None
    # 256 / 2 * (8 * 112 + 12 * 64) bytes, by the space's file
    assert over.reason == "UB is estimated to overflow: it needs 212,992 of 196,608 B"


# ------------------------------------------------------------------------------------- searches


def request(**changes: object) -> Request:
    made = Request(
        workload=WORKLOAD,
        target=B3,
        measured=False,
        kernels=(KERNEL,),
        budget=Budget(trials=60),
        workers=1,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """In place of the pool: tiles of up to 96 x 96 fit. Holds what was compiled."""
    seen: list[Config] = []

    class Done(Pending):
        def trial(self) -> Trial:
            seen.append(self.config)
            scores = self.config["BLOCK_M"] * self.config["BLOCK_N"]
            excess = (scores - 96 * 96) / (96 * 96)
            outcome: Outcome = "ok" if excess <= 0 else "compile_failed"
            planned = MemoryPlan({"ub": excess, "l1": -0.5, "l0c": -0.5})
            return Trial(
                self.config,
                outcome,
                "UB overflow",
                Resources(planned=planned, code=str(self.config)),
            )

    def submit(self: CompilePool, each: Config, rank: Rank = Rank.NOW) -> Pending:
        done: Future[tuple[Outcome, Resources | None, float, str]] = Future()
        done.set_result(("ok", None, 0.0, ""))
        return Done(each, done)

    monkeypatch.setattr(CompilePool, "submit", submit)
    return seen


def test_a_search_finds_a_tile_that_fits_near_the_best(compiler: list[Config]) -> None:
    result = search.search(request(), user_store())
    record = result.record
    assert record is not None and record.objective == "modelled" and record.device is None
    fitting = [c for c in result.feasible[KERNEL.name].configs if fits(c)]
    assert record.median_us <= 1.05 * min(map(expected_us, fitting))
    left = [c for c in result.feasible[KERNEL.name].configs if c not in compiler]
    faster = sum(expected_us(each) < record.median_us for each in left)
    assert record.provenance["faster_untried"] == faster > 0
    assert fits(record.config) and not all(map(fits, compiler))
    assert len(compiler) == 60
    assert user_store().records() == [record]
    assert record.resources is not None and record.resources.planned is None


def fits(each: Config) -> bool:
    return bool(each["BLOCK_M"] * each["BLOCK_N"] <= 96 * 96)


def test_what_only_a_device_tells_apart_is_left_as_it_is(compiler: list[Config]) -> None:
    found = candidates.feasible_by_kernel(request())[KERNEL.name]
    for name in ("WORKSPACE_BUFFERS", "L0C_BUFFERS", "UNIT_FLAG"):
        assert {each[name] for each in found.configs} == {DEFAULT[name]}
    timed = candidates.feasible_by_kernel(request(measured=True))[KERNEL.name]
    assert {each["UNIT_FLAG"] for each in timed.configs} == {0, 1}


@pytest.mark.parametrize(("compiler_version", "parts"), [("1.1.0", {2}), ("1.2.0", {1, 2, 4, 8})])
def test_configs_that_a_compiler_makes_the_same_of_are_one(
    monkeypatch: pytest.MonkeyPatch, compiler_version: str, parts: set[int]
) -> None:
    from tunefa.compile.languages import ascend

    told = {"triton": "ascend 3.2.0", "compiler": f"bishengir-compile {compiler_version} (428ab8)"}
    monkeypatch.setattr(ascend, "versions", lambda: told)
    found = candidates.feasible_by_kernel(request())[KERNEL.name]
    assert {each["TILE_MIX_VECTOR_LOOP"] for each in found.configs} == parts


def test_a_compiler_may_come_and_go_between_two_searches(compiler: list[Config]) -> None:
    estimated = search.search(request(estimate=True), user_store()).record
    assert estimated is not None and estimated.objective == "estimated" and not compiler
    modelled = search.search(request(), user_store()).record
    assert modelled is not None and modelled.objective == "modelled"
    assert user_store().best() == [modelled], "what a compiler has seen stands before an estimate"


@pytest.mark.parametrize("strategy", strategies.names())
def test_every_strategy_gets_by(compiler: list[Config], strategy: str) -> None:
    asked = request(strategy=strategy, budget=Budget(trials=16))
    result = search.search(asked, user_store())
    assert result.record is not None and fits(result.record.config)
