"""tunefa export --portfolio: what is read, written and said, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.fake_objective import KERNEL
from tests.support.sample_journals import written
from tests.support.sample_landscapes import CONFIGS, trial
from tests.support.sample_portfolios import WORKLOADS, journal, journals
from tunefa.spec.workload import Workload
from tunefa.store import results as store


@pytest.fixture
def searched(home: Path) -> list[Path]:
    """The journals of three workloads."""
    return journals()


def test_it_writes_a_record_of_each_workload_with_few_configs(
    run: Run, searched: list[Path]
) -> None:
    out = run("export", "few.yaml", "--portfolio", "2%").stdout
    assert "2 configs for 3 workloads, each at most 2% slower" in out
    assert "the lower bound is 2" in out and "Wrote 3 records as yaml to few.yaml" in out
    records = store.read(Path("few.yaml"))
    assert [r.workload for r in records] == [Workload.parse(text) for text in WORKLOADS]
    assert len({str(record.config) for record in records}) == 2


def test_json_says_all(run: Run, searched: list[Path]) -> None:
    said = json.loads(run("export", "few.yaml", "--portfolio", "2 %", "--json").stdout)
    assert (said["path"], said["records"]) == ("few.yaml", 3)
    found = said["portfolio"]
    assert len(found["configs"]) == found["bound"] == 2 and found["exact"]
    assert found["bound_if_unmeasured_were_good"] == 1 and found["unmeasured_pairs"] == 3
    assert [each["config"] for each in found["dispatch"]] == [0, 0, 1]
    assert [each["best_us"] for each in found["dispatch"]] == [100.0, 200.0, 400.0]
    assert [each["configs"] for each in found["curve"]] == [1, 2, 3]


def test_standard_output_is_the_export_alone(run: Run, searched: list[Path]) -> None:
    done = run("export", "-", "--format", "json", "--portfolio", "2%")
    assert len(json.loads(done.stdout)["records"]) == 3
    assert "2 configs for 3 workloads" in done.stderr


def test_journals_and_workloads_can_be_named(run: Run, searched: list[Path]) -> None:
    first, *_ = searched
    out = run("export", "a.yaml", "--portfolio", "2%", "--journal", str(first)).stdout
    assert "1 config for 1 workload," in out
    out = run("export", "a.yaml", "--portfolio", "2%", "--seqlen", "2k").stdout
    assert "1 config for 1 workload," in out
    folder = str(first.parent)
    out = run("export", "a.yaml", "--portfolio", "2%", "--journal", folder).stdout
    assert "2 configs for 3 workloads," in out


def test_two_devices_need_a_name(run: Run, searched: list[Path]) -> None:
    journal(WORKLOADS[0], {0: 100.0}, device="NVIDIA H100 80GB HBM3")
    error = run("export", "a.yaml", "--portfolio", "2%", code=1).stderr
    assert "NVIDIA H100 80GB HBM3 (sm90) and of NVIDIA H200 (sm90)" in error
    assert "name it with --device" in error and not Path("a.yaml").exists()
    out = run("export", "a.yaml", "--portfolio", "2%", "--device", "h100").stdout
    assert "1 config for 1 workload" in out


def test_only_devices_of_the_kernels_that_are_named_count(run: Run, searched: list[Path]) -> None:
    other = "attention_fwd_gluon_sm90"
    journal(WORKLOADS[0], {0: 100.0}, 13, kernel=other, device="NVIDIA H100 80GB HBM3")
    words = ("export", "a.yaml", "--portfolio", "2%")
    assert "name it with --device" in run(*words, code=1).stderr
    assert "2 configs for 3 workloads" in run(*words, "--kernel", KERNEL.name).stdout


def test_replayed_times_were_measured_elsewhere(run: Run, home: Path) -> None:
    journal(WORKLOADS[0], {0: 100.0}, objective="replayed")
    error = run("export", "a.yaml", "--portfolio", "2%", code=1).stderr
    assert "none of 1 journal in" in error and "holds measured times" in error


def test_a_damaged_journal_of_the_user_is_left_out_and_named(
    run: Run, searched: list[Path]
) -> None:
    searched[0].write_text("{}\n{}\n{}\n")
    done = run("export", "a.yaml", "--portfolio", "2%")
    assert "Left out a journal: " in done.stderr and "for 2 workloads" in done.stdout
    error = run("export", "a.yaml", "--portfolio", "2%", "--journal", str(searched[0]), code=1)
    assert str(searched[0]) in error.stderr


def test_records_that_this_tunefa_does_not_run_are_counted(run: Run, searched: list[Path]) -> None:
    out = run("export", "a.yaml", "--portfolio", "2%").stdout
    assert "will not run 3 of 3 records" in " ".join(out.split())
    done = run("export", "lock.yaml", "--portfolio", "2%", "--frozen", code=3)
    assert "none of 3 records serves" in done.stderr


def test_the_curve_is_plotted(run: Run, searched: list[Path]) -> None:
    pytest.importorskip("matplotlib")
    run("export", "a.yaml", "--portfolio", "2%", "--plot", "curve.png")
    assert Path("curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("value", ["2", "0.02", "two", "100%", "-1%", "nan%", ""])
def test_a_regret_is_a_percentage(run: Run, searched: list[Path], value: str) -> None:
    error = run("export", "a.yaml", f"--portfolio={value}", code=1).stderr
    assert f"--portfolio {value!r} must be a percentage below 100, such as 2%" in error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("a.yaml --journal x.jsonl", "--journal is for portfolios: add --portfolio 2%"),
        ("a.yaml --kernel x", "--kernel is for portfolios"),
        ("a.yaml --plot x.png", "--plot is for portfolios"),
        ("a.yaml --portfolio 2% --from b.yaml", "give --journal, not --from"),
    ],
)
def test_options_that_do_not_go_together(run: Run, arguments: str, error: str) -> None:
    assert error in run("export", *arguments.split(), code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--journal missing.jsonl", "missing.jsonl does not exist: name a journal"),
        ("--kernel attention_fwd_triton2", "did you mean attention_fwd_triton?"),
        ("--seqlen 64k", "none of 3 journals in"),
    ],
)
def test_mistakes(run: Run, searched: list[Path], arguments: str, error: str) -> None:
    said = run("export", "a.yaml", "--portfolio", "2%", *arguments.split(), code=1).stderr
    assert error in said and not Path("a.yaml").exists()


def test_a_file_that_cannot_be_written_is_named_before_anything_is_read(
    run: Run, home: Path
) -> None:
    words = ("--portfolio", "2%", "--journal", "missing.jsonl")
    assert "the folder no/where does not" in run("export", "no/where/a.yaml", *words, code=1).stderr
    words = ("--portfolio", "2%", "--plot", "no/where/c.png")
    assert "the folder no/where does not" in run("export", "a.yaml", *words, code=1).stderr


def test_a_format_that_can_write_none_of_them_says_so(run: Run, home: Path) -> None:
    journal(WORKLOADS[0], {0: 100.0}, kernel="attention_fwd_gluon_sm90")
    error = run("export", "a.triton.py", "--portfolio", "2%", code=1).stderr
    assert "triton can write none of 1 record" in error and not Path("a.triton.py").exists()


def test_predicted_journals_are_no_measurements(run: Run, home: Path) -> None:
    guess = trial(CONFIGS[0])
    written("20260131T120000", guess, kernel=KERNEL.name, workload=WORKLOADS[0])
    error = run("export", "a.yaml", "--portfolio", "2%", code=1).stderr
    assert "none of 1 journal in" in error and "measured times" in error


def test_journals_of_failures_only(run: Run, home: Path) -> None:
    journal(WORKLOADS[0], {0: None})
    assert "measured times" in run("export", "a.yaml", "--portfolio", "2%", code=1).stderr
