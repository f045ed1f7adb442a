"""The report of `tunefa explain` for a GPU: what a config needs, and what limits its speed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from tunefa.cli.reports import arithmetic, compared, step, text
from tunefa.cli.reports.against_known import AgainstKnown
from tunefa.cli.reports.explained import Explained, common
from tunefa.cli.reports.step import Step
from tunefa.costmodel import latency
from tunefa.costmodel.anchor import Anchor
from tunefa.costmodel.estimate import Estimate, estimate
from tunefa.costmodel.gpu import Prediction
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.target import Case
from tunefa.spec.trial import Resources, Trial
from tunefa.store.prediction import Interval

_LIMIT_NAMES = {
    "threads": "threads",
    "registers": "registers",
    "smem": "shared memory",
    "blocks": "CTAs",
    "grid": "the grid",
}
_LEAST_CHANGE = 0.0005
"""Smaller changes are written as 0.0 %, so they are left out."""
_LOWER_BOUNDS = "lower bounds, not compiled: the compiler will need more"
_LIMITED_BY = {
    "tensor": "limited by the tensor cores",
    "exp2": "limited by the exponentials (special-function units)",
    "issue": "limited by instruction issue ({issued})",
    "smem": "limited by shared-memory bandwidth",
    "spills": "limited by spilled registers: a smaller tile or more warps would spill fewer",
    "latency": "limited by waiting: too few independent warps or stages to hide latencies",
    "L2": "limited by reads from the L2 cache",
    "HBM": "limited by device memory",
    "occupancy": "the config cannot run: one CTA does not fit an SM",
}


@dataclass(frozen=True)
class Explanation(Explained):
    """One config on one GPU; without a compiler, `resources` are lower bounds."""

    threads: int
    """The threads of one CTA."""
    step: Step
    prediction: Prediction
    """The cost model's time in each pipe."""
    estimate: Estimate
    """The same, corrected by what the model has learned from measurements; without a compiler, with
    the registers to be expected of one."""
    against: AgainstKnown
    """The time that is expected, and the best known config beside it."""

    @property
    def time_us(self) -> float:
        """The time that is expected."""
        return self.against.expected.time_us

    @property
    def interval(self) -> Interval | None:
        """The interval that a measured time is expected in."""
        return Interval.around(self.time_us, self.against.expected.sd)

    @property
    def occupancy_lines(self) -> dict[str, str]:
        """The arithmetic of each limit on the CTAs of an SM."""
        return arithmetic.occupancy_lines(
            gpu(self.case.arch), self.resources, self.threads, self.prediction.occupancy
        )

    @property
    def cycle_lines(self) -> dict[str, tuple[str, str]]:
        """The formula and the numbers of each pipe."""
        return self.step.lines

    def to_data(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        found, interval = self.prediction, self.interval
        lines = self.cycle_lines
        return {
            **self.head("lower bounds"),
            "threads": self.threads,
            "resources": asdict(self.resources),
            "blocks_per_sm": found.occupancy.blocks_per_sm,
            "blocks_limiter": found.occupancy.limiter,
            "blocks_by_limit": dict(found.occupancy.limits),
            "blocks_arithmetic": self.occupancy_lines,
            "cycles_per_step": {
                pipe: {"cycles": cycles, "formula": lines[pipe][0], "numbers": lines[pipe][1]}
                for pipe, cycles in found.cycles_per_step.items()
            },
            "limiter": found.limiter,
            "predicted_us": self.time_us,
            "interval_us": interval.to_data() if interval else None,
            "predicted_tflops": self.case.workload.flops / self.time_us / 1e6,
            "arithmetic_us": found.time_us,
            "model_us": self.estimate.time_us,
            "best_known": self.against.to_data(),
            "compared_with": compared.to_data(self.case.arch, self.case.workload.op),
            "steps": found.steps,
            "compute_us": found.compute_us,
            "l2_us": found.l2_us,
            "hbm_us": found.hbm_us,
            "beside_us": found.beside_us,
        }


def explain(
    case: Case, config: Mapping[str, Any], trial: Trial | None, anchor: Anchor | None = None
) -> Explanation:
    """Explains a config; `trial` is the compiled config, or None.

    Where it was not compiled, or failed to, the space's lower bounds replace the compiler's
    figures, and the time is that with the registers to be expected of a compiler. `anchor` is what
    is known of the workload; None stands for the measured default alone.
    """
    if anchor is None:
        anchor = Anchor.of([], case.workload, case.target, [case.kernel])
    resources = trial.resources if trial is not None else None
    bounds = case.estimate(config)
    used = resources or Resources(int(bounds["smem_bytes"]), int(bounds["registers"]))
    model = latency.of(case)
    prediction = model.predict(case, config, used)
    return Explanation(
        **common(case, config, trial),
        resources=used,
        threads=model.threads(case, config),
        step=step.of(case, config, used, prediction),
        prediction=prediction,
        estimate=estimate(case, config, resources),
        against=AgainstKnown.of(anchor, case, config, resources),
    )


def show(explanation: Explanation, origin: str, out: Console) -> None:
    """Prints the report without the next command."""
    figures = "from the compiler" if explanation.compiled else _LOWER_BOUNDS
    explanation.show_head(origin, figures, {}, out)
    _show_resources(explanation, out)
    _show_occupancy(explanation, out)
    _show_cycles(explanation, out)
    _show_time(explanation, out)


def _show_resources(explanation: Explanation, out: Console) -> None:
    least = "" if explanation.compiled else "at least "
    resources = explanation.resources
    facts = {
        "threads": f"{explanation.threads:,}",
        "registers": f"{least}{text.number(resources.registers)} per thread",
        "shared memory": f"{least}{text.number(resources.smem_bytes)} B",
    }
    if resources.spill_bytes is not None:
        facts["spilled"] = f"{resources.spill_bytes:,} B per thread"
    out.print()
    out.print(text.heading("One CTA needs"))
    out.print(text.facts(facts, indent=2))


def _show_occupancy(explanation: Explanation, out: Console) -> None:
    found = explanation.prediction.occupancy
    lines = explanation.occupancy_lines
    most = "" if explanation.compiled else " at most"
    out.print()
    count = text.plural(found.blocks_per_sm, "CTA")
    limits = [_LIMIT_NAMES[k] for k, ctas in found.limits.items() if ctas == found.blocks_per_sm]
    out.print(text.heading(f"An SM holds {count}{most}, limited by {' and '.join(limits)}"))
    width = out.width - 17
    rows = {_LIMIT_NAMES[each]: text.broken(line, width) for each, line in lines.items()}
    out.print(text.facts(rows, indent=2))


def _show_cycles(explanation: Explanation, out: Console) -> None:
    lines = explanation.cycle_lines
    pipes = explanation.prediction.cycles_per_step
    rows = text.table("  pipe", "cycles", "formula, then numbers", right=("cycles",))
    for pipe, cycles in sorted(pipes.items(), key=lambda each: -each[1]):
        if not cycles:
            continue
        formula, numbers = lines[pipe]
        rows.add_row(f"  {pipe}", text.number(cycles, 1), f"{formula}\n= {numbers}")
    out.print()
    out.print(text.heading(f"One step, {explanation.step.size}, takes in each pipe"))
    out.print(rows)


def _corrections(explanation: Explanation) -> str:
    """The changes that measurements make to the arithmetic's time, in words; empty if none."""
    model_us = explanation.estimate.time_us
    learned = model_us / explanation.prediction.time_us - 1
    level = explanation.time_us / model_us - 1
    lesson = "what was learned from measurements"
    if not explanation.compiled:
        lesson += " (with the registers to be expected)"
    changes = {lesson: learned, "the nearest measured record": level}
    said = [f"{what} by {each:+.1%}" for what, each in changes.items() if abs(each) > _LEAST_CHANGE]
    return ", and ".join(said).replace(" by ", " changes that by ", 1)


def _show_time(explanation: Explanation, out: Console) -> None:
    found = explanation.prediction
    out.print()
    if found.occupancy.blocks_per_sm == 0:
        out.print(text.heading(f"No time: {_LIMITED_BY['occupancy']}"))
        return
    time_us = explanation.time_us
    unit, rate = text.rate(explanation.case.workload, time_us)
    figures = f"{time_us:,.1f} us, {rate} {unit}"
    out.print(text.heading(f"Predicted {figures}{text.interval(explanation.interval, ', ')}"))
    out.print(f"{explanation.against.sentence[0].upper()}{explanation.against.sentence[1:]}.")
    if corrections := _corrections(explanation):
        out.print(f"The arithmetic below gives {found.time_us:,.1f} us; {corrections}.")
    limited = _LIMITED_BY.get(found.limiter, f"limited by {found.limiter}")
    out.print(limited.format(issued=explanation.step.issued))
    rows = text.table("  part", "us", "from", right=("us",))
    megahertz, through_l2 = explanation.case.device.boost_mhz, explanation.step.through_l2
    parts = arithmetic.time_lines(found, megahertz, through_l2)
    for part, (part_us, origin) in parts.items():
        rows.add_row(f"  {part}", text.number(part_us, 1), text.broken(origin, out.width - 19))
    out.print(rows)
    out.print()
    out.print(compared.sentence(explanation.case.arch, explanation.case.workload.op))
