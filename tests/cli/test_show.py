"""tunefa show: --kernel, and the failures. Records are in test_files.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.own_kernels import OwnKernels
from tests.support.sample_records import measured
from tests.support.tree import TREE
from tunefa.store import results as store


def test_kernel_narrows_the_records(run: Run, home: Path) -> None:
    for record in (measured(), measured("q8192", kernel="another")):
        store.default_store().add(record)
    (record,) = json.loads(run("show", "--kernel", "another", "--json").stdout)["records"]
    assert record["kernel"] == "another"
    assert len(json.loads(run("show", "--json").stdout)["records"]) == 2


@pytest.mark.parametrize("columns", ["0", "1", "40", "60", "80", "100"])
def test_records_can_be_read_in_a_terminal_of_any_width(
    run: Run, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    record = measured("b16_q1024_w128_softcap")
    store.default_store().add(record)
    out = run("show").stdout
    lines = [line.rstrip() for line in out[: out.index("\nNext: ")].splitlines()]
    width = max(int(columns) or 80, 40)
    assert [line for line in lines if len(line) > width] in ([], [str(record.workload)])
    words = " ".join(lines).replace(",", "").split()
    assert {str(record.workload), "412.5", "2025-01-31"} <= set(words)
    assert {f"{name}={value}" for name, value in record.config.items()} <= set(words)


def test_help_promises_no_defaults_that_do_not_apply(run: Run) -> None:
    """Options that select records have none."""
    for command in ("show", "export", "report"):
        said = " ".join(run(command, "--help").stdout.split())
        options = said[said.index("--arch") :]
        assert "this machine's GPU" not in options and "also the KV heads" not in options
        assert set(re.findall(r"\[default: [^]]*", options)) <= {"[default: report.html"}


def test_a_kernel_that_is_broken_hides_nothing(run: Run, own_kernels: OwnKernels) -> None:
    own_kernels.add_attention("sound")
    own_kernels.add_broken("broken")
    for name, workload in (("broken", "q1024"), ("sound", "q2048")):
        store.default_store().add(measured(workload, kernel=name))
    said = json.loads(run("show", "--json").stdout)
    assert [record["kernel"] for record in said["records"]] == ["broken", "sound"]
    (broken,), sound = said["drift"]
    assert broken.startswith("broken cannot be loaded: ") and "broken.yaml:" in broken
    assert "broken" not in " ".join(sound)
    assert said["serves"] == ["refused", "refused"] and "broken.yaml:" in said["why"][0]
    doctor = json.loads(run("doctor", "--arch", "h200", "--json").stdout)
    assert doctor["records"]["refused"] == 2 and doctor["records"]["serving"] == 0
    (problem,) = doctor["problems"]
    assert "broken.yaml:" in problem and doctor["versions"]["ptxas"]


def test_show_loads_nothing_heavy(home: Path) -> None:
    store.default_store().add(measured("q1000"))
    code = "from tunefa.cli import main; main(['show'], standalone_mode=False); import sys; "
    code += "print(sorted({'torch', 'triton', 'optuna', 'numpy'} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "does not serve: " in done.stdout and done.stdout.splitlines()[-1] == "[]"
