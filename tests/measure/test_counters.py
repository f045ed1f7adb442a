"""tunefa/measure/counters.py: ncu's tables, its failures, and the processes that it runs.

The tables are composed like those of Nsight Compute (tests/support/ncu_output.py); those in
tests/fixtures/ncu/ are recordings. The program that stands for ncu is a script that prints such a
table; it is not ncu.
"""

from __future__ import annotations

import csv
import stat
import sys
from pathlib import Path

import pytest

from tests.support.ncu_output import AFTER, BEFORE, COLUMNS, METRICS, SOFTMAX, launch, table
from tests.support.tree import TREE
from tunefa.errors import TunefaError
from tunefa.measure import counters
from tunefa.measure.counters import Launch, Report

READ, WRITE, TIME, HITS = METRICS
NAMES = list(METRICS)


def test_a_table_with_awkward_cells() -> None:
    text = table(
        [
            launch(SOFTMAX, "1,073,741,824", "12.5", "2,848", "41.25"),
            launch("_attention", "4.2e+06", "0", "n/a", "(!) n/a", number=1),
        ]
    )
    noise = "ibrc.cpp:1753: error status: 7\n"
    first, second = counters.parse(BEFORE + noise + text + AFTER)
    assert first.kernel == SOFTMAX
    assert first.values == {READ: 2.0**30, WRITE: 12.5, TIME: 2848.0, HITS: 41.25}
    assert second.values == {READ: 4.2e6, WRITE: 0.0, TIME: None, HITS: None}


def test_lines_of_the_log_between_launches_are_no_launches() -> None:
    lines = table([launch("a", "1", "1", "1", "1"), launch("b", "2", "2", "2", "2", number=1)])
    head, body = lines.rsplit('"1","4711"', 1)
    text = f'{head}==WARNING== clocks are not locked\n"1","4711"{body}'
    assert [each.kernel for each in counters.parse(text)] == ["a", "b"]


@pytest.mark.parametrize(
    ("units", "nanoseconds"),
    [
        (["Mbyte", "Kbyte", "usecond", "%"], 7e3),
        (["Mbyte", "Kbyte", "us", "%"], 7e3),
        (["Mbyte", "Kbyte", "second", "%"], 7e9),
    ],
)
def test_other_units_are_converted(units: list[str], nanoseconds: float) -> None:
    (found,) = counters.parse(table([launch("a", "3", "5", "7", "9")], units))
    assert found.values == {READ: 3e6, WRITE: 5e3, TIME: nanoseconds, HITS: 9.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "run as root"),
        ("==WARNING== No kernels were profiled.\n", "ncu saw no kernel"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", "gVisor"),
        ("==ERROR== The resource is already in use", "another profiler"),
        ("==ERROR== Something new happened.\n", "ncu printed no table: Something new happened."),
        ("", "its output is empty"),
        (table([]), "ncu saw no kernel"),
    ],
)
def test_failures_are_one_sentence(text: str, said: str) -> None:
    with pytest.raises(TunefaError) as caught:
        counters.parse(text)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_output_that_is_cut_off_is_refused() -> None:
    text = table([launch("a", "1", "2", "3", "4")])
    with pytest.raises(TunefaError, match="launch 0 has 15 of 17 columns"):
        counters.parse(text.rstrip().removesuffix(',"3","4"'))


def test_totals_and_means_of_several_launches() -> None:
    report = Report(
        [
            Launch("a", {READ: 10.0, TIME: 100.0, HITS: 20.0, WRITE: None}),
            Launch("b", {READ: 5.0, TIME: 300.0, HITS: 60.0, WRITE: 1.0}),
        ]
    )
    assert report.total(READ) == 15.0 and report.total(WRITE) is None
    assert report.mean(HITS, TIME) == pytest.approx((20 * 100 + 60 * 300) / 400)
    assert report.mean(WRITE, TIME) is None and Report([]).total(READ) is None


def fake_ncu(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Puts a program with ncu's name into PATH. `log` is its log file, `asked` its counters and
    `command` what it should run."""
    path = folder / "ncu"
    path.write_text(
        f"#!{sys.executable}\nimport pathlib, subprocess, sys\nwords = sys.argv[1:]\n"
        "log = pathlib.Path(words[words.index('--log-file') + 1])\n"
        "asked = words[words.index('--metrics') + 1].split(',') if '--metrics' in words else []\n"
        "command = words[words.index('--') + 1:] if '--' in words else []\n" + body
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))


def test_a_counter_that_the_chip_lacks_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = table([launch("a", "1", "2", "3", "n/a")])
    fake_ncu(
        tmp_path,
        monkeypatch,
        f"if {HITS!r} in asked:\n"
        f"    log.write_text('==ERROR== Failed to find metric {HITS}\\n')\n"
        f"    sys.exit(1)\n"
        f"log.write_text({shown!r})\n",
    )
    report = counters.read(["true"], [READ, HITS])
    assert report.launches == [Launch("a", {READ: 1.0, HITS: None})]
    report = counters.read(["true"], [READ, "sm__nothing.sum"])
    assert report.total("sm__nothing.sum") is None
    with pytest.raises(TunefaError, match="this chip has none of the counters lts"):
        counters.read(["true"], [HITS])


def test_the_failure_of_the_command_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "print('tunefa: PyTorch sees no GPU here', file=sys.stderr)\nsys.exit(1)\n"
    fake_ncu(tmp_path, monkeypatch, body)
    with pytest.raises(TunefaError, match="the call failed under ncu: PyTorch sees no GPU here"):
        counters.read(["true"], NAMES)


def test_missing_rights_come_before_the_failure_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "log.write_text('==ERROR== ERR_NVGPUCTRPERM\\n')\nprint('x', file=sys.stderr)\nexit(1)\n"
    fake_ncu(tmp_path, monkeypatch, body)
    with pytest.raises(TunefaError, match="may not read the GPU's counters"):
        counters.read(["true"], NAMES)


def test_a_command_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ncu(tmp_path, monkeypatch, "import time\ntime.sleep(60)\n")
    monkeypatch.setattr(counters, "LIMIT_S", 0.5)
    with pytest.raises(TunefaError, match="name a smaller workload"):
        counters.read(["true"], NAMES)


def test_a_missing_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    if not Path("/usr/local/cuda/bin/ncu").exists():
        with pytest.raises(TunefaError, match="Nsight Compute is missing"):
            counters.tool()
    (tmp_path / "bin").mkdir()
    found = tmp_path / "bin" / "ncu"
    found.write_text("#!/bin/sh\n")
    found.chmod(0o755)
    assert counters.tool() == str(found)


def test_a_report_that_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ncu(tmp_path, monkeypatch, "pass\n")
    with pytest.raises(TunefaError, match="ncu has written no"):
        counters.record(["true"], tmp_path / "missing.ncu-rep", NAMES)


def test_a_report_without_the_counters_that_the_chip_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "made.ncu-rep"
    fake_ncu(
        tmp_path,
        monkeypatch,
        f"if {HITS!r} in asked:\n"
        f"    log.write_text('==WARNING== These metrics do not exist: {HITS}, {READ}\\n')\n"
        f"    sys.exit(1)\n"
        f"pathlib.Path(words[words.index('--export') + 1]).write_text(' '.join(asked))\n",
    )
    counters.record(["true"], path, NAMES)
    assert path.read_text() == f"{WRITE} {TIME}"


def test_reports_are_imported_as_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = table([launch("a", "1", "2", "3", "4")])
    path = tmp_path / "ncu"
    asked = "assert sys.argv[1:3] == ['--import', 'x.ncu-rep']"
    path.write_text(f"#!{sys.executable}\nimport sys\n{asked}\nprint({shown!r})\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = counters.imported(Path("x.ncu-rep")).launches
    assert found.values[TIME] == 3.0


RECORDED = sorted((TREE / "tests" / "fixtures" / "ncu").glob("*.csv"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_ncu_really_printed(path: Path) -> None:
    launches = counters.parse(path.read_text(encoding="utf-8"))
    assert len(launches) >= 3, "products and softmax"
    for each in launches:
        known = [each.values[name] for name in (READ, WRITE, HITS)]
        assert all(value is not None and value >= 0 for value in known), each
        assert 100 < (each.values[TIME] or 0) < 1e9, "nanoseconds"


def test_an_h200s_counters() -> None:
    """The operators of b1 h4 s512 d64: Q K^T, scale, mask, softmax and P V."""
    (path,) = (path for path in RECORDED if path.stem == "h200")
    report = Report(counters.parse(path.read_text(encoding="utf-8")))
    assert [each.values[TIME] for each in report.launches] == [4480, 3200, 5920, 6976, 4768]
    assert "masked_fill" in report.launches[2].kernel
    assert "softmax_warp_forward" in report.launches[3].kernel
    assert report.total(READ) == 542976 + 2103040 + 1943296 + 2113280 + 2375168
    assert report.total(WRITE) == 0, "2 MB of scores stay in the L2"


def test_composed_tables_have_the_columns_of_recordings() -> None:
    for path in RECORDED:
        lines = path.read_text(encoding="utf-8").splitlines()
        head, units = csv.reader([line for line in lines if not line.startswith("==")][:2])
        assert tuple(head[: len(COLUMNS)]) == COLUMNS
        assert {name: units[head.index(name)] for name in METRICS} == METRICS
