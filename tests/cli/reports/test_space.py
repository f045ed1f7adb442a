"""tunefa/cli/reports/space.py: parameters, counts and refusals."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from tests.support.sample_records import CONFIG
from tunefa.cli.reports import space
from tunefa.cli.reports.space import Counted
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.space import Feasible
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_triton")
REFUSED = {"seldom": 7, "never": 0, "often": 1234}


def counted(**changes: Any) -> Counted:
    feasible = Feasible((CONFIG,) * 3, REFUSED)
    made = {"default": CONFIG, "why_no_default": "", **changes}
    return Counted(KERNEL, Workload.parse("q4096"), archs.load("sm90"), feasible, **made)


def printed(found: Counted) -> str:
    file = io.StringIO()
    space.show(found, Console(file=file, width=100))
    return file.getvalue()


def test_rules_that_refused_most_come_first_and_others_not_at_all() -> None:
    said = printed(counted())
    assert "3 of 1,244 configs can run." in said
    assert said.index("1,234  often") < said.index("7  seldom") and "never" not in said


def test_every_parameter_stands_there_with_its_values() -> None:
    said = printed(counted())
    for parameter in KERNEL.space.parameters:
        line = next(line for line in said.splitlines() if line.startswith(f"{parameter.name} "))
        assert str(parameter.values[0]) in line
    timed = [p.name for p in KERNEL.space.parameters if p.timed_only]
    assert said.count("tried where a device times it") >= bool(timed)


def test_the_default_or_why_there_is_none() -> None:
    assert "default  BLOCK_M=128 BLOCK_N=64" in printed(counted())
    none = counted(default=None, why_no_default="every default is refused")
    assert "default  every default is refused" in printed(none)
    assert none.to_data()["default"] is None


def test_as_data() -> None:
    data = counted().to_data()
    assert (data["total"], data["feasible"], data["refused"]) == (1244, 3, REFUSED)
    assert data["parameters"]["BLOCK_M"] == list(KERNEL.space.parameters[0].values)


def test_where_nothing_was_refused_there_is_no_table() -> None:
    file = io.StringIO()
    space.show_refusals({"never": 0}, Console(file=file))
    assert file.getvalue() == ""
