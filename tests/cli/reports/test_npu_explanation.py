"""`tunefa explain` for an NPU: what its report says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.ascend_compiler import THERE, needs_compiler
from tunefa.cli import main
from tunefa.cli.reports import npu_explanation
from tunefa.cli.reports.npu_explanation import MemoryUse, NpuExplanation
from tunefa.compile.ascend import toolchain
from tunefa.spec.target import Case
from tunefa.spec.trial import MemoryPlan, Resources, Trial
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("h8_q2048_d64_fp16_full")
CASE = Case.from_names("attention_fwd_ascend", str(WORKLOAD), "ascend910b3")
DEFAULT = CASE.default()
OVER = Resources(
    ub_bytes=265216, l1_bytes=458752, l0c_bytes=262144, planned=MemoryPlan({"ub": 0.35, "l0c": 1.0})
)


def explain(trial: Trial | None, **changes: int) -> NpuExplanation:
    return npu_explanation.explain(CASE, {**DEFAULT, **changes}, trial)


def run(*words: str) -> Result:
    asked = ["explain", "--arch", "ascend910b3", "-w", str(WORKLOAD), *words]
    return CliRunner().invoke(main, asked, env={"COLUMNS": "100"})


@pytest.mark.parametrize(
    ("needed", "bar"),
    [(0, "[................] "), (98304, "[########........] "), (196608, "[################] "),
     (196609, "[################]>"), (None, "[................] ")],
)  # fmt: skip
def test_a_bar_is_as_long_as_what_is_taken(needed: int | None, bar: str) -> None:
    assert MemoryUse("UB", needed, 196608, "").bar == bar


def test_what_the_compiler_says_stands_in_every_scope() -> None:
    found = explain(Trial(DEFAULT, "compile_failed", "UB overflow", OVER), BLOCK_M=256, BLOCK_N=256)
    memories = {memory.name: memory.needed_bytes for memory in found.memories}
    assert memories == {"UB": 265216, "L1": 458752, "L0A": 65536, "L0B": 32768, "L0C": 262144}
    assert found.compiled and found.failure == "compile_failed: UB overflow"
    assert "the results of the cube core must fit L0C" in found.refused_by


def test_without_the_compiler_formulas_stand_there() -> None:
    found = explain(None)
    assert not found.compiled
    needed = {memory.name: memory.needed_bytes for memory in found.memories}
    # 64 / 2 * (8 * 64 + 12 * 64); 2 * 2 * (64 * 64 + 3 * 64 * 64); 4 * 64 * (64 + 64)
    assert (needed["UB"], needed["L1"], needed["L0C"]) == (40960, 65536, 32768)


def test_what_the_compiler_changed_is_said() -> None:
    changed = Resources(ub_bytes=1, planned=MemoryPlan({}, {"enable-auto-multi-buffer": False}))
    found = explain(Trial(DEFAULT, "ok", resources=changed))
    assert not found.tiling.multibuffer and found.time_us > explain(None).time_us


def test_the_report_without_a_compiler() -> None:
    done = run("--no-compile")
    assert done.exit_code == 0, done.output
    for part in ("UB ", "L1 ", "L0A", "L0B", "L0C", "estimated by formulas", "[###"):
        assert part in done.stdout
    assert "nothing ran on an NPU" in done.stdout
    lacking = run()
    assert lacking.exit_code == 1
    assert "tunefa ascend setup', or use --no-compile to go on without it" in lacking.stderr


def test_as_data() -> None:
    found: dict[str, Any] = json.loads(run("--no-compile", "--json").stdout)
    assert found["memories"]["l0c"] == {"needed_bytes": 32768, "available_bytes": 131072}
    assert found["resources_from"] == "estimates"
    assert found["modelled_us"] == pytest.approx(found["steps"] * found["step_us"])


@needs_compiler
def test_the_report_with_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.folder().parent.mkdir(parents=True, exist_ok=True)
    toolchain.folder().symlink_to(THERE)
    done = run("-c", "BLOCK_M=256,BLOCK_N=256")
    assert done.exit_code == 0, done.output
    assert "from the compiler, which planned the memories" in done.stdout
    assert "]>" in done.stdout and "L0C overflow: 262,144 of 131,072 B" in done.stdout
