"""tunefa space."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.conftest import Run
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload


def test_counts_are_those_of_the_rules(run: Run) -> None:
    arguments = ("space", "--arch", "sm90", "--seqlen", "8192")
    spaces = json.loads(run(*arguments, "--json").stdout)["spaces"]
    assert {"attention_fwd_triton", "attention_fwd_gluon_sm90"} <= {s["kernel"] for s in spaces}
    shown = run(*arguments).stdout
    for space in spaces:
        out = run(*arguments, "--kernel", space["kernel"]).stdout
        _check_counts(space, out)
        assert out.split("\nNext: ")[0] in shown


def _check_counts(space: dict[str, Any], out: str) -> None:
    kernel = kernels.load(space["kernel"])
    workload, arch = Workload.of(seqlen_q=8192), archs.load("sm90")
    found = kernel.space.feasible(workload, arch)
    assert space["feasible"] == len(found.configs)
    assert space["total"] == space["feasible"] + sum(space["refused"].values())
    assert space["default"] == kernel.default(workload, arch)
    assert f"{len(found.configs):,} of {found.total:,} configs can run." in out
    for rule, count in found.refused.items():
        assert (f"{count:,}  {rule}" in out) is (count > 0)


def test_next_command_works(run: Run) -> None:
    out = run("space", "--arch", "h200", "--seqlen", "1", "--seqlen-k", "8192").stdout
    words = out.splitlines()[-1].split()
    assert words[:2] == ["tunefa", "search"]
    assert run("space", *words[2:]).stdout == out


def test_output_fits_the_terminal(run: Run) -> None:
    lines = run("space", "--arch", "sm90", "--seqlen", "8192").stdout.splitlines()
    assert max(map(len, lines)) <= 80
