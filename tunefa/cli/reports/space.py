"""The report of `tunefa space`, and the table of refusals by rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from tunefa.cli.reports import text
from tunefa.spec.arch import Arch
from tunefa.spec.kernel import Kernel
from tunefa.spec.space import Feasible
from tunefa.spec.workload import Workload


@dataclass(frozen=True)
class Counted:
    """A kernel's space, and its feasible configs for one workload."""

    kernel: Kernel
    workload: Workload
    arch: Arch
    feasible: Feasible
    default: dict[str, Any] | None
    why_no_default: str

    def to_data(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "kernel": self.kernel.name,
            "parameters": {p.name: list(p.values) for p in self.kernel.space.parameters},
            "total": self.feasible.total,
            "feasible": len(self.feasible.configs),
            "refused": dict(self.feasible.refused),
            "default": self.default,
        }


def show(counted: Counted, out: Console) -> None:
    """Prints the parameters, the counts, the refusals and the default."""
    out.print(text.heading(f"{counted.kernel.name} for {counted.workload} on {counted.arch.name}"))
    out.print()
    parameters = text.table("parameter", "values", "what it is")
    for parameter in counted.kernel.space.parameters:
        values = " ".join(map(str, parameter.values))
        where = " (varied only where configs are measured)" if parameter.timed_only else ""
        parameters.add_row(parameter.name, values, parameter.doc + where)
    out.print(parameters)
    out.print()
    feasible = counted.feasible
    out.print(f"{len(feasible.configs):,} of {feasible.total:,} configs can run.", soft_wrap=True)
    show_refusals(feasible.refused, out)
    out.print()
    default = counted.why_no_default or text.config_text(counted.default or {})
    out.print(text.facts({"default": default}))


def show_refusals(refused: Mapping[str, int], out: Console) -> None:
    """Prints how many configs each rule refused; the first rule that refuses one counts."""
    counts = text.table("refused", "by the rule", right=("refused",))
    for rule, count in sorted(refused.items(), key=lambda each: -each[1]):
        if count:
            counts.add_row(text.number(count), rule)
    if counts.row_count:
        out.print(counts)
