"""`tunefa trace`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.tree import TREE
from tunefa.cli import main
from tunefa.spec.workload import Workload
from tunefa.store import traced

PROGRAM = """
import sys, tunefa
function = tunefa.flash_attention  # tunefa is what imports torch
import torch, torch.nn.functional as F
q = torch.randn(1, 4, 32, 16, requires_grad=True, dtype=torch.bfloat16)
F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
function(q.detach(), q.detach(), q.detach(), layout="bhsd")
if len(sys.argv) > 1:
    import subprocess
    subprocess.run([sys.executable, sys.argv[0]], check=True)
    sys.exit(int(sys.argv[1]))
"""
FILE = "workloads:\n- {workload: b2_q2048_bf16, weight: 2.0, calls: 100}\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A program in a Python in which tunefa is installed."""
    info = tmp_path / "site" / "tunefa_plugin_under_test-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tunefa-plugin\nVersion: 0\n")
    entry = "tunefa_under_test = tunefa.integrations.autoload:at_import"
    (info / "entry_points.txt").write_text(f"[torch.backends]\n{entry}\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{TREE}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    return ["--", sys.executable, str(tmp_path / "program.py")]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["trace", *arguments])


def test_the_workloads_of_all_processes_are_written(tmp_path: Path, program: list[str]) -> None:
    done = run(*program, "3")
    assert done.exit_code == 3, done.output
    assert "Next: tune them" in done.stderr and "--workloads workloads.yaml --top 10" in done.stderr
    found = traced.read(tmp_path / "workloads.yaml")
    assert {str(each): calls.count for each, calls in found.workloads.items()} == {
        "fwd_b1_h4_kv4_q32_k32_d16_bf16_causal": 2,
        "bwd_b1_h4_kv4_q32_k32_d16_bf16_causal": 2,
        "fwd_b1_h4_kv4_q32_k32_d16_bf16_full": 2,
    }


@pytest.mark.parametrize(
    ("own", "dashes"), [(["--out", "mine.yaml", "--json"], ["--"]), (["-o", "mine.yaml"], [])]
)
def test_options_behind_the_program_s_name_are_its_own(
    tmp_path: Path, program: list[str], own: list[str], dashes: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "program.py").write_text(PROGRAM.split("if len")[0] + "print(sys.argv[1:])")
    words = ["-o", "x", "--json", "--out=y", "--report", "z", "--", "-h"]
    done = run(*own, *dashes, *program[1:], *words)
    assert done.exit_code == 0, done.output
    assert capfd.readouterr().out == f"{words}\n"
    if "--json" in own:
        assert len(json.loads(done.stdout)["workloads"]) == 3
    else:
        assert "Written to mine.yaml" in done.stderr and not done.stdout
    assert len(traced.read(tmp_path / "mine.yaml").workloads) == 3


def test_without_a_workload_no_search_is_proposed(tmp_path: Path, program: list[str]) -> None:
    text = (tmp_path / "program.py").read_text().split("F.scaled")[0]
    masked = "F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(32, 32).bool())"
    (tmp_path / "program.py").write_text(text + masked)
    done = run(*program)
    assert done.exit_code == 0, done.output
    assert "attention with a mask" in done.stderr and "Next" not in done.stderr
    assert "Written to workloads.yaml. Nothing in it is a workload of tunefa." in done.stderr


def test_a_wrong_option_before_the_program_is_named() -> None:
    done = run("--oot", "mine.yaml", "--", sys.executable)
    assert done.exit_code == 2 and "No such option" in done.output and "--out" in done.output
    done = run("-x", sys.executable)
    assert done.exit_code == 2 and "-x" in done.output


def test_programs_without_attention_and_programs_that_are_not_there(program: list[str]) -> None:
    done = run("--", sys.executable, "-c", "print(1)")
    assert done.exit_code == 1 and "computed no attention that a trace sees" in done.stderr
    done = run("--", sys.executable, "-c", "raise SystemExit(7)")
    assert done.exit_code == 7 and not done.stderr
    done = run("--", "no-such-program")
    assert done.exit_code == 1 and "cannot run no-such-program: No such file" in done.stderr


def test_wrong_usage(tmp_path: Path) -> None:
    done = run()
    assert done.exit_code == 2 and "no program: give one after --" in done.output
    done = run("--report", "a.yaml", "--", "python")
    assert done.exit_code == 2 and "--report runs no program" in done.output
    done = run("--report", str(tmp_path / "none.yaml"))
    assert done.exit_code == 1 and "cannot read" in done.output


def test_the_report(tmp_path: Path) -> None:
    path = tmp_path / "workloads.yaml"
    path.write_text(FILE)
    done = run("--report", str(path), "--arch", "h200")
    assert done.exit_code == 0, done.output
    assert "fwd_b2_h32_kv8_q2048_k2048_d128_bf16_causal" in done.output
    assert f"search --workloads {path} --top 10" in " ".join(done.output.split())


def test_a_search_takes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunefa.cli import search

    asked: list[Workload] = []

    def seen(selection: object, *rest: object) -> None:
        asked.extend(selection.workloads)  # type: ignore[attr-defined]
        raise SystemExit(0)

    monkeypatch.setattr(search, "_budget", seen)
    path = tmp_path / "workloads.yaml"
    path.write_text(FILE + "- {workload: q64, weight: 3}\n- {workload: q65, weight: 1}\n")
    CliRunner().invoke(main, ["search", "--workloads", str(path), "--top", "2"])
    assert asked == [Workload.parse("q64"), Workload.parse("b2_q2048_bf16")]
