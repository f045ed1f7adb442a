"""The common part of the explanations of a config, for GPUs and NPUs."""

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
    """The explanation of one config on one chip."""

    case: Case
    config: Mapping[str, Any]
    refused_by: tuple[str, ...]
    """The rules that refuse the config."""
    resources: Resources
    compiled: bool
    """Whether `resources` come from the compiler; if not, they are bounds or estimates."""
    failure: str
    """The reason that the config did not compile; empty if it did, or was not compiled."""

    def head(self, without_compiler: str) -> dict[str, Any]:
        """The first fields of `--json`; `without_compiler` names the resources of no compiler."""
        return {
            "kernel": self.case.kernel.name,
            "workload": str(self.case.workload),
            "arch": self.case.arch.name,
            "device": self.case.device.name,
            "config": dict(self.config),
            "refused_by": list(self.refused_by),
            "resources_from": "compiler" if self.compiled else without_compiler,
            "compile_failure": self.failure or None,
        }

    def show_head(self, origin: str, figures: str, more: Mapping[str, str], out: Console) -> None:
        """Prints the first part of the report; `figures` says where the figures come from."""
        out.print(text.heading(f"{self.case.workload} on {self.case.target}"))
        rules = self.refused_by
        facts = {
            "kernel": self.case.kernel.name,
            "config": text.config_text(self.config),
            "from": origin,
            "rules": "refused: " + "; ".join(rules) if rules else "all rules allow it",
            "figures": figures,
        }
        if self.failure:
            facts["compiling"] = self.failure
        out.print(text.facts({**facts, **more}))


def common(case: Case, config: Mapping[str, Any], trial: Trial | None) -> dict[str, Any]:
    """The fields of `Explained` except `resources`; `trial` is the compiled config, or None."""
    return {
        "case": case,
        "config": config,
        "refused_by": case.refusals(config),
        "compiled": trial is not None and trial.resources is not None,
        "failure": f"{trial.outcome}: {trial.reason}" if trial and trial.outcome != "ok" else "",
    }
