"""The report of `tunefa explain` for an NPU: the use of a core's memories, and the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from tunefa.cli.reports import text
from tunefa.cli.reports.explained import Explained, common
from tunefa.costmodel import npu as npu_model
from tunefa.measure import npu as npu_objectives
from tunefa.spec.arch_catalog import npu
from tunefa.spec.target import Case
from tunefa.spec.tiling import NpuTiling
from tunefa.spec.trial import MemoryPlan, Trial
from tunefa.spec.workload import DTYPES

_BAR_CHARACTERS = 16
_ESTIMATED = "estimated by formulas, not compiled: the compiler may need more or less"
_COMPILED = "from the compiler, which planned the memories"


@dataclass(frozen=True)
class MemoryUse:
    """The bytes of one memory that a config needs."""

    name: str
    """UB (of one vector core), L1, L0A, L0B, L0C."""
    needed_bytes: int | None
    """None where it is not known."""
    available_bytes: int
    holds: str

    @property
    def part(self) -> float:
        """The part of the memory that is needed; above 1 it does not fit."""
        return (self.needed_bytes or 0) / self.available_bytes

    @property
    def bar(self) -> str:
        """A bar for `part`, with `>` at the end if the config does not fit."""
        filled = min(_BAR_CHARACTERS, round(self.part * _BAR_CHARACTERS))
        over = ">" if self.part > 1 else " "
        return f"[{'#' * filled}{'.' * (_BAR_CHARACTERS - filled)}]{over}"


@dataclass(frozen=True)
class NpuExplanation(Explained):
    """The explanation of one config on one NPU; without a compiler, `resources` are estimates."""

    tiling: NpuTiling

    @property
    def memories(self) -> list[MemoryUse]:
        """The use of each memory.

        The compiler does not report L0A and L0B. Their use is the size of the operands; the
        vendor's product splits operands that are larger.
        """
        workload, tile, arch = self.case.workload, self.tiling, npu(self.case.arch)
        size = DTYPES[workload.dtype]
        left = size * tile.block_m * max(workload.head_dim, tile.block_n)
        right = size * tile.block_n * workload.head_dim
        used = self.resources
        return [
            MemoryUse("UB", used.ub_bytes, arch.ub_bytes, "scores and output, fp32"),
            MemoryUse("L1", used.l1_bytes, arch.l1_bytes, "Q, K, V, probabilities"),
            MemoryUse("L0A", min(left, arch.l0a_bytes), arch.l0a_bytes, "left operand or a part"),
            MemoryUse("L0B", min(right, arch.l0b_bytes), arch.l0b_bytes, "right operand or a part"),
            MemoryUse("L0C", used.l0c_bytes, arch.l0c_bytes, "results of products"),
        ]

    @property
    def time_us(self) -> float:
        """The latency model's time, in us."""
        return npu_model.time_us(self.case.workload, self.case.device, self.tiling)

    def to_data(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            **self.head("estimates"),
            "resources": asdict(self.resources),
            "memories": {
                memory.name.lower(): {
                    "needed_bytes": memory.needed_bytes,
                    "available_bytes": memory.available_bytes,
                }
                for memory in self.memories
            },
            "steps": _steps(self),
            "step_us": npu_model.step_us(self.case.workload, self.case.device, self.tiling),
            "modelled_us": self.time_us,
            "modelled_tflops": self.case.workload.flops / self.time_us / 1e6,
        }


def explain(case: Case, config: Mapping[str, Any], trial: Trial | None) -> NpuExplanation:
    """Explains a config; `trial` is the compiled config, or None.

    Where the compiler has not reported the memories, formulas estimate them.
    """
    tiling = case.npu_tiling(config)
    resources = trial.resources if trial is not None else None
    return NpuExplanation(
        **common(case, config, trial),
        resources=resources or npu_objectives.estimated(tiling, npu(case.arch)),
        tiling=npu_objectives.as_compiled(tiling, resources),
    )


def show(explanation: NpuExplanation, origin: str, out: Console) -> None:
    """Prints the report without the next command."""
    planned, more = explanation.resources.planned or MemoryPlan(), {}
    if planned.changed:
        more["changed"] = f"by the compiler, so that it fits: {text.config_text(planned.changed)}"
    figures = _COMPILED if explanation.compiled else _ESTIMATED
    explanation.show_head(origin, figures, more, out)
    _show_memories(explanation, out)
    _show_time(explanation, out)


def _show_memories(explanation: NpuExplanation, out: Console) -> None:
    out.print()
    out.print(text.heading("It needs of the memories of one core"))
    rows = text.table("  memory", "", "part", "B", "of B", "holds", right=("", "part", "B", "of B"))
    for memory in explanation.memories:
        known = memory.needed_bytes is not None
        rows.add_row(
            f"  {memory.name}",
            memory.bar,
            f"{memory.part:.0%}" if known else text.NO_VALUE,
            text.number(memory.needed_bytes),
            text.number(memory.available_bytes),
            memory.holds,
        )
    out.print(rows)
    workspace = explanation.resources.workspace_bytes
    if workspace is not None:
        cores = explanation.case.device.sms
        out.print(f"  and {workspace:,} B of global memory for each of {cores} cores")


def _show_time(explanation: NpuExplanation, out: Console) -> None:
    found, tile = explanation, explanation.tiling
    tflops = found.case.workload.flops / found.time_us / 1e6
    step = npu_model.step_us(found.case.workload, found.case.device, tile)
    work = npu_model.work_us(found.case.workload, tile)
    out.print()
    out.print(text.heading(f"Modelled {found.time_us:,.1f} us, {tflops:,.1f} TFLOP/s"))
    out.print("by a latency model fitted to public measurements of a 910B3; nothing ran on an NPU")
    loads = "" if tile.multibuffer else ", and the loads of K and V, which nothing hides"
    parts = f"the longer of {npu_model.LATENCY_US} us of waiting and {work:.2f} us of work{loads}"
    sizes = f"each of {tile.block_m} queries by {tile.block_n} keys"
    busiest = f"{_steps(found):,} on the busiest of {found.case.device.sms} cores"
    rows = {"one step": f"{step:.2f} us: {parts}", "steps": f"{busiest}, {sizes}"}
    out.print(text.facts(rows, indent=2))


def _steps(found: NpuExplanation) -> int:
    tile = found.tiling
    return npu_model.steps(found.case.workload, found.case.device.sms, tile.block_m, tile.block_n)
