"""tunefa bench compare: its options, and an earlier run without a GPU. On a GPU: tests/gpu."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support import sample_comparison as sample
from tunefa.cli import main, targets

without_gpu = pytest.mark.skipif(bool(targets.seen()), reason="this machine has a GPU")


def bench(*words: str, columns: int = 80) -> Result:
    return CliRunner().invoke(main, ["bench", *words], env={"COLUMNS": str(columns)})


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "forward.json"
    sample.document().save(path)
    return path


@pytest.mark.parametrize("words", [["compare"], []])
@pytest.mark.parametrize("columns", [80, 200])
def test_an_earlier_run_is_shown(words: list[str], columns: int, stored: Path) -> None:
    done = bench(*words, "--from", str(stored), columns=columns)
    assert done.exit_code == 0, done.output
    assert "measured on NVIDIA H200 (sm90), 2026-11-22" in done.stdout
    assert (
        "tunefa          100.0    2.0%      400    80     80%    2%  2.2e-3  1.4e-2" in done.stdout
    )
    assert max(map(len, done.stdout.splitlines())) <= columns


def test_json_is_the_document(stored: Path) -> None:
    done = bench("compare", "--from", str(stored), "--json")
    data = json.loads(done.stdout)
    assert data == json.loads(stored.read_text())
    assert (data["schema"], data["experiment"], data["source"]) == (1, "compare", "measured")


def test_a_run_in_which_tunefa_failed_has_a_status_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "forward.json"
    sample.document(sample.row(fa4=100.0)).save(path)
    assert bench("--from", str(path)).exit_code == 3


@without_gpu
@pytest.mark.parametrize(
    "words",
    [
        ["compare", "-w", "q512"],
        ["-w", "q512"],
        ["--seqlen", "512"],
        ["--seqlen", "512", "--backward"],
    ],
)
def test_without_a_gpu_it_says_what_to_do(words: list[str]) -> None:
    done = bench(*words)
    assert done.exit_code == 1
    assert done.stderr == (
        "Error: this machine has no GPU, and a comparison measures: run it on a machine with one "
        "and --out FILE, and show that file here with --from FILE\n"
    )


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["-w", "q512", "--peers", "cudn"], 2, "unknown peer 'cudn': did you mean cudnn?"),
        (["-w", "q512", "--kernel", "attention"], 1, "unknown kernel 'attention'"),
        (["-w", "q512", "--rounds", "0"], 2, "0 is not in the range x>=1"),
        (["-w", "q512", "--mode", "fast"], 2, "'fast' is not one of 'eager', 'graph', 'step'"),
        (["--from", "nowhere.json"], 2, "does not exist"),
        (["-w", "matmul_m64"], 1, "is no attention, which is what is compared here"),
        (["-w", "decode_k512"], 1, "is attention over a cache, which is not compared here"),
        (["--seqlen", "64", "--page-size", "16"], 1, "`python -m benchmarks.prefill` compares it"),
        (["-w", "bwd_q512_e4m3"], 1, "attention in e4m3 has no gradient"),
    ],
)
def test_mistakes_are_said(words: list[str], status: int, says: str) -> None:
    done = bench("compare", *words)
    assert done.exit_code == status and says in done.stderr


def test_out_is_checked_before_anything_is_measured(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("mine\n")
    done = bench("-w", "q512", "--out", str(other))
    assert done.exit_code == 1 and "not overwritten: move it away first" in done.stderr
    assert other.read_text() == "mine\n"
    done = bench("-w", "q512", "--out", str(tmp_path / "none" / "a.json"))
    assert done.exit_code == 1 and "none does not exist: create it" in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no JSON document"),
        ("{}", "is no result of an experiment"),
        ('{"schema": 1, "experiment": "scaling", "source": "measured", "arch": "sm90", '
         '"device": "H200", "rows": []}', "tunefa bench scaling --from"),
        ('{"schema": 1, "experiment": "compare", "source": "measured", "arch": "sm90", '
         '"device": "H200", "rows": [{}]}', "the contest has missing or wrong fields"),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_a_users_mistake(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    done = bench("compare", "--from", str(path))
    assert done.exit_code == 1 and says in done.stderr
    assert done.stderr.count("\n") == 1
