"""The report of `tunefa explain` for an NPU: each memory of a core with what a config takes of it,
and how long the law of time says it takes."""

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
_ESTIMATED = "estimated by formulas, not compiled: the compiler has the last word"
_COMPILED = "the compiler's, as it planned the memories"


@dataclass(frozen=True)
class Share:
    """What a config takes of one memory."""

    memory: str
    """UB (of one vector core), L1, L0A, L0B, L0C."""
    needed_bytes: int | None
    """None where nobody says."""
    available_bytes: int
    holds: str

    @property
    def part(self) -> float:
        """Above 1 it does not fit."""
        return (self.needed_bytes or 0) / self.available_bytes

    @property
    def bar(self) -> str:
        """As long as what it takes; `>` at the end of what does not fit."""
        filled = min(_BAR_CHARACTERS, round(self.part * _BAR_CHARACTERS))
        over = ">" if self.part > 1 else " "
        return f"[{'#' * filled}{'.' * (_BAR_CHARACTERS - filled)}]{over}"


@dataclass(frozen=True)
class NpuExplanation(Explained):
    """One config on one NPU; without a compiler, `resources` are estimates."""

    tiling: NpuTiling

    @property
    def shares(self) -> list[Share]:
        """Of each memory. Of L0A and L0B the compiler says nothing: by the size of operands, which
        the vendor's product takes in parts where they are larger."""
        workload, tile, arch = self.case.workload, self.tiling, npu(self.case.arch)
        size = DTYPES[workload.dtype]
        left = size * tile.block_m * max(workload.head_dim, tile.block_n)
        right = size * tile.block_n * workload.head_dim
        used = self.resources
        return [
            Share("UB", used.ub_bytes, arch.ub_bytes, "scores and output, fp32"),
            Share("L1", used.l1_bytes, arch.l1_bytes, "Q, K, V, probabilities"),
            Share("L0A", min(left, arch.l0a_bytes), arch.l0a_bytes, "left operand or a part"),
            Share("L0B", min(right, arch.l0b_bytes), arch.l0b_bytes, "right operand or a part"),
            Share("L0C", used.l0c_bytes, arch.l0c_bytes, "results of products"),
        ]

    @property
    def time_us(self) -> float:
        """By the law."""
        return npu_model.time_us(self.case.workload, self.case.device, self.tiling)

    def to_data(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            **self.head("estimates"),
            "resources": asdict(self.resources),
            "memories": {
                share.memory.lower(): {
                    "needed_bytes": share.needed_bytes,
                    "available_bytes": share.available_bytes,
                }
                for share in self.shares
            },
            "steps": _steps(self),
            "step_us": npu_model.step_us(self.case.workload, self.case.device, self.tiling),
            "modelled_us": self.time_us,
            "modelled_tflops": self.case.workload.flops / self.time_us / 1e6,
        }


def explain(case: Case, config: Mapping[str, Any], trial: Trial | None) -> NpuExplanation:
    """Explains a config; `trial` is how it compiled, None if it was not asked to.

    Where the compiler says nothing of its memories, formulas do.
    """
    tiling = case.npu_tiling(config)
    resources = trial.resources if trial is not None else None
    return NpuExplanation(
        **common(case, config, trial),
        resources=resources or npu_objectives.estimated(tiling, npu(case.arch)),
        tiling=npu_objectives.as_compiled(tiling, resources),
    )


def show(explanation: NpuExplanation, origin: str, out: Console) -> None:
    """The whole report, but the next command."""
    planned, more = explanation.resources.planned or MemoryPlan(), {}
    if planned.changed:
        more["changed"] = f"by the compiler, so that it fits: {text.config_text(planned.changed)}"
    figures = _COMPILED if explanation.compiled else _ESTIMATED
    explanation.show_head(origin, figures, more, out)
    _show_memories(explanation, out)
    _show_time(explanation, out)


def _show_memories(explanation: NpuExplanation, out: Console) -> None:
    out.print()
    out.print(text.heading("Of the memories of one core it takes"))
    rows = text.table("  memory", "", "part", "B", "of B", "holds", right=("", "part", "B", "of B"))
    for share in explanation.shares:
        known = share.needed_bytes is not None
        rows.add_row(
            f"  {share.memory}",
            share.bar,
            f"{share.part:.0%}" if known else text.NO_VALUE,
            text.number(share.needed_bytes),
            text.number(share.available_bytes),
            share.holds,
        )
    out.print(rows)
    workspace = explanation.resources.workspace_bytes
    if workspace is not None:
        cores = explanation.case.device.sms
        out.print(f"  and of global memory {workspace:,} B for each of {cores} cores")


def _show_time(explanation: NpuExplanation, out: Console) -> None:
    found, tile = explanation, explanation.tiling
    tflops = found.case.workload.flops / found.time_us / 1e6
    step = npu_model.step_us(found.case.workload, found.case.device, tile)
    work = npu_model.work_us(found.case.workload, tile)
    out.print()
    out.print(text.heading(f"Modelled {found.time_us:,.1f} us, {tflops:,.1f} TFLOP/s"))
    out.print("by a law fitted to public measurements of a 910B3; nothing ran on an NPU")
    loads = "" if tile.multibuffer else ", and loads of K and V that nothing hides"
    parts = f"{npu_model.LATENCY_US} us of waiting or {work:.2f} us of work, the longer{loads}"
    sizes = f"each of {tile.block_m} queries by {tile.block_n} keys"
    busiest = f"{_steps(found):,} of the busiest of {found.case.device.sms} cores"
    rows = {"one step": f"{step:.2f} us: {parts}", "steps": f"{busiest}, {sizes}"}
    out.print(text.facts(rows, indent=2))


def _steps(found: NpuExplanation) -> int:
    tile = found.tiling
    return npu_model.steps(found.case.workload, found.case.device.sms, tile.block_m, tile.block_n)
