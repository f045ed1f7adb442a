"""The grid of tiles: which config stands for a cell, and why others do not run."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import pytest

from tunefa.compile.pool import Rank
from tunefa.costmodel.estimate import estimates
from tunefa.errors import TunefaError
from tunefa.experiments import tile_grid
from tunefa.experiments.document import Row
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Resources, Trial
from tunefa.spec.workload import Workload

SM80 = Target.named("sm80")
WORKLOAD = Workload.parse("h8_q1024_d64_fp16_full")
CASE = tile_grid.case_of(WORKLOAD, SM80)


class Objective:
    """Judges by a rule of the test: configs with few warps spill, wide tiles do not compile."""

    kind: Literal["predicted"] = "predicted"

    def __init__(self, most: int = 1000) -> None:
        self.asked: list[Config] = []
        self._waiting = deque[Config]()
        self._most = most

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        self.asked.append(config)
        self._waiting.append(config)

    def next(self, wait_s: float) -> Trial | None:
        assert wait_s > 0
        if self._most == 0:
            return None
        self._most -= 1
        config = self._waiting.popleft()
        if config["BLOCK_N"] == 256:
            return Trial(config, "compile_failed", "ptxas says no")
        spills = 0 if config["num_warps"] > 1 else 400
        needs = Resources(smem_bytes=1000, registers=100, spill_bytes=spills)
        return Trial(config, "ok", resources=needs, predicted_us=100.0)


def cells(objective: Any, case: Case = CASE) -> dict[tuple[int, int], Row]:
    found = tile_grid.cells(case, objective and (lambda _: nullcontext(objective)))
    return {(row["block_m"], row["block_n"]): row for row in found}


def test_every_pair_has_a_cell() -> None:
    sizes = [16, 32, 64, 128, 256]
    assert list(cells(None)) == [(m, n) for m in sizes for n in sizes]


def test_without_a_compiler_the_fastest_by_the_model_stands_for_a_cell() -> None:
    row = cells(None)[64, 64]
    same = [c for c in CASE.feasible().configs if (c["BLOCK_M"], c["BLOCK_N"]) == (64, 64)]
    least = min(each.time_us for each in estimates(CASE, same))
    assert row["time_us"] == least and not row["is_compiled"] and row["spill_bytes"] is None
    assert row["smem_bytes"] == int(CASE.estimate(row["config"])["smem_bytes"])


def test_refused_cells_name_their_last_obstacle() -> None:
    found = cells(None)
    assert found[256, 256]["reason"] == "the accumulators must leave a thread 16 registers"
    assert found[256, 256]["outcome"] == "refused" and found[256, 256]["time_us"] is None
    wide = cells(None, Case(CASE.kernel, Workload.parse("h8_q1024_d256_fp32_full"), SM80))
    reasons = {row["reason"] for row in wide.values() if row["outcome"] != "ok"}
    assert "the shared memory of a CTA must not exceed the chip's limit" in reasons
    short = cells(None, Case(CASE.kernel, Workload.parse("h8_q16_k1024_d64_full"), SM80))
    assert short[64, 64]["reason"].startswith("BLOCK_M must not exceed the query rows")


def test_the_candidate_that_does_not_spill_wins() -> None:
    objective = Objective()
    row = cells(objective)[32, 32]
    tried = [c for c in objective.asked if (c["BLOCK_M"], c["BLOCK_N"]) == (32, 32)]
    assert {config["num_warps"] for config in tried} == {1, 2}
    assert row["config"]["num_warps"] == 2 and row["spill_bytes"] == 0 and row["is_compiled"]


def test_what_the_compiler_refuses_has_its_reason() -> None:
    row = cells(Objective())[64, 256]
    assert (row["outcome"], row["reason"]) == ("compile_failed", "ptxas says no")
    assert row["time_us"] is None


def test_cells_keep_the_model_where_time_is_up() -> None:
    found = cells(Objective(most=3))
    compiled = [row for row in found.values() if row["is_compiled"]]
    assert 1 <= len(compiled) <= 3
    assert all(row["time_us"] for row in found.values() if row["outcome"] == "ok")


def test_a_measured_time_is_said_to_be_one() -> None:
    class Timed(Objective):
        def next(self, wait_s: float) -> Trial | None:
            trial = super().next(wait_s)
            return trial and replace(trial, samples_us=(3.0, 1.0, 2.0))

    row = cells(Timed())[64, 64]
    assert row["time_us"] == 2.0 and row["is_measured"]


def test_the_warpgroups_of_a_kernel_are_its_rows() -> None:
    space = kernels.load("attention_fwd_cuda_sm90").space
    assert tile_grid.sides_of(space) == ("WARPGROUPS", "BLOCK_N")
    e4m3 = Workload.parse("q1024_d128_e4m3")
    assert tile_grid.case_of(e4m3, Target.named("h200")).kernel.name != tile_grid.PREFERRED


def test_no_kernel_with_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_grid, "SIDES", (("BLOCK_A", "BLOCK_B"),))
    with pytest.raises(TunefaError, match="no kernel with BLOCK_M and BLOCK_N serves"):
        tile_grid.case_of(WORKLOAD, SM80)
