"""A whole search for a matrix product with the real compiler, model and interpreter; no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tunefa.cli import main
from tunefa.store import journal
from tunefa.store import results as store

WORDS = ("-w", "matmul_m300_n200_k100_fp16_nt", "--arch", "sm80")
CANONICAL = "matmul_m300_n200_k100_fp16_nt"


def tunefa(*words: str) -> Result:
    return CliRunner().invoke(main, [*words], env={"COLUMNS": "80"})


def test_a_search_ends_with_a_checked_record_that_the_other_commands_read() -> None:
    done = tunefa("search", *WORDS, "--budget", "3", "--workers", "1", "--json")
    assert done.exit_code == 0, done.output
    (record,) = (each for each in store.default_store().records() if each.workload.op == "matmul")
    assert str(record.workload) == CANONICAL and record.objective == "predicted"
    assert record.provenance["compared_with"] == []
    assert record.provenance["check"].startswith("relative error ")
    data = json.loads(done.stdout)
    trials = [trial for _, trial in journal.read(Path(data["journal"]))]
    assert trials and all(trial.resources for trial in trials if trial.outcome == "ok")
    shown = tunefa("show", *WORDS[:2])
    assert shown.exit_code == 0 and CANONICAL in shown.stdout
    assert "The intervals of matmul assume" in " ".join(shown.stdout.split())
    exported = tunefa("export", "-", "--format", "json", *WORDS[:2])
    assert json.loads(exported.stdout)["records"] == [record.to_dict()]
    explained = json.loads(tunefa("explain", *WORDS, "--json").stdout)
    assert explained["origin"].startswith("predicted: ")
    assert explained["config"] == record.config


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("search", "-w", "matmul_m64", "--arch", "ascend910b3"), "runs on chips of nvidia"),
        (("search", "-w", "matmul_m0"), "m is '0': give a whole number from 1"),
        (("bench", "compare", "-w", "matmul_m64"), "is no attention, which is what is compared"),
        (("bench", "scaling", "--arch", "sm90", "-w", "matmul_m64"), "workloads of the op fwd"),
        (("bench", "matmul", "--arch", "sm90", "-w", "q64"), "workloads of the op matmul"),
        (("search", "-w", "matmul_m1000k", "--arch", "sm90"), "GiB for A, B and C, and NVIDIA"),
    ],
)
def test_what_does_not_serve_is_one_sentence(words: tuple[str, ...], said: str) -> None:
    done = tunefa(*words)
    assert done.exit_code in (1, 2) and said in done.stderr, done.output
    assert isinstance(done.exception, SystemExit)


def test_all_experiments_leave_out_those_of_other_ops() -> None:
    done = tunefa("bench", "all", "--arch", "sm90", "-w", "matmul_m1024", "--json")
    assert done.exit_code == 0, done.output
    (only,) = json.loads(done.stdout)["experiments"]
    assert only["experiment"] == "matmul"
