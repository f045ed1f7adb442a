"""What explanations of a config have in common, for whatever kind of chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from tunefa.cli.reports import text
from tunefa.spec.target import Case
from tunefa.spec.trial import Resources, Trial


@dataclass(frozen=True)
class Explained:
    """One config on one chip."""

    case: Case
    config: Mapping[str, Any]
    refused_by: tuple[str, ...]
    """Every rule that refuses it."""
    resources: Resources
    compiled: bool
    """Whether `resources` are the compiler's; else something stands in for them."""
    failure: str
    """Why it did not compile; empty if it did or was not asked to."""

    def head(self, stand_in: str) -> dict[str, Any]:
        """Where `--json` begins; `stand_in` is what resources are from without a compiler."""
        return {
            "kernel": self.case.kernel.name,
            "workload": str(self.case.workload),
            "arch": self.case.arch.name,
            "device": self.case.device.name,
            "config": dict(self.config),
            "refused_by": list(self.refused_by),
            "resources_from": "compiler" if self.compiled else stand_in,
            "compile_failure": self.failure or None,
        }

    def show_head(self, origin: str, figures: str, more: Mapping[str, str], out: Console) -> None:
        """Where the report begins; `figures` says where they are from."""
        out.print(text.heading(f"{self.case.workload} on {self.case.target}"))
        rules = self.refused_by
        facts = {
            "kernel": self.case.kernel.name,
            "config": text.config_text(self.config),
            "from": origin,
            "rules": "refused: " + "; ".join(rules) if rules else "none refuses it",
            "figures": figures,
        }
        if self.failure:
            facts["compiling"] = self.failure
        out.print(text.facts({**facts, **more}))


def common(case: Case, config: Mapping[str, Any], trial: Trial | None) -> dict[str, Any]:
    """The fields of `Explained` but for `resources`; `trial` is how the config compiled, None if it
    was not asked to."""
    return {
        "case": case,
        "config": config,
        "refused_by": case.refusals(config),
        "compiled": trial is not None and trial.resources is not None,
        "failure": f"{trial.outcome}: {trial.reason}" if trial and trial.outcome != "ok" else "",
    }
