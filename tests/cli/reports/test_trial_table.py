"""tunefa/cli/reports/trial_table.py: the rows of a search's report, and the default's."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.canned_search import CONFIG, SMALL, Searching
from tests.support.sample_records import measured, predicted
from tunefa.cli import targets
from tunefa.compile.launch.driver import SeenDevice
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.trial import Resources, Trial
from tunefa.spec.workload import Workload

DEFAULT = kernels.load("attention_fwd_triton").default(
    Workload.parse("q4096"), Target.named("sm90").arch
)
KERNEL = ("--kernel", "attention_fwd_triton")


def trial(us: float, spill_bytes: int = 0, smem_bytes: int = 98336, **changes: Any) -> Trial:
    resources = Resources(smem_bytes, 168, spill_bytes, 0)
    return Trial({**CONFIG, **changes}, "ok", resources=resources, predicted_us=us)


EQUAL = [
    trial(300.0),
    trial(300.0, L2_SECTION_HEADS=4),
    trial(300.0, L2_SECTION_HEADS=16, smem_bytes=131072),
    trial(310.0, num_stages=3),
    replace(trial(390.0), config=DEFAULT),
]


def test_configs_that_the_model_cannot_tell_apart_are_one_row(
    run: Run, canned: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    canned(record=predicted(config=CONFIG), finished=EQUAL)
    out = run(*SMALL, *KERNEL).stdout
    assert "3 configs, the model cannot tell them apart: L2_SECTION_HEADS 1, 4, 16" in out
    assert out.count("300.0") == 1 and "96.0-128 " in out
    first, second, third = json.loads(run(*SMALL, *KERNEL, "--json").stdout)["top"]
    assert first["group"]["size"] == 3 and second["group"] is third["group"] is None
    assert first["group"]["differ"] == {"L2_SECTION_HEADS": [1, 4, 16]}
    assert [each["config"] for each in first["group"]["configs"]] == [
        dict(each.config) for each in EQUAL[:3]
    ]


def test_what_was_measured_is_told_apart(
    run: Run, canned: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "seen", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 10**11)])
    timed = [replace(each, samples_us=(each.predicted_us or 0.0,)) for each in EQUAL]
    canned(record=measured(config=CONFIG), finished=timed)
    said = json.loads(run("search", "--seqlen", "4096", *KERNEL, "--json").stdout)
    assert [row["median_us"] for row in said["top"]] == [300, 300, 300, 310, 390]


def test_a_config_that_spills_is_not_on_top_of_a_near_one(run: Run, canned: Searching) -> None:
    canned(finished=[trial(300.0, spill_bytes=8), trial(340.0, num_stages=3), trial(350.0)])
    said = json.loads(run(*SMALL, "--json", code=3).stdout)
    assert [row["median_us"] for row in said["top"]] == [340, 300, 350]
    reason = "order: a config that spills registers counts as 15% slower, the model's error"
    assert reason in run(*SMALL, code=3).stdout
    canned(finished=[trial(300.0, spill_bytes=8), trial(350.0)])
    assert "order: " not in run(*SMALL, code=3).stdout


@pytest.mark.parametrize("columns", ["40", "60"])
def test_no_figure_is_cut_off_in_a_narrow_terminal(
    run: Run, canned: Searching, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    canned(record=predicted(config=CONFIG, median_us=300.0), finished=EQUAL)
    out = run(*SMALL, *KERNEL).stdout
    assert max(len(line) for line in out.split("limiter:")[0].splitlines()[3:]) <= int(columns)
    assert "\n1  us 300.0, TFLOP/s " in out and "\n   us 390.0, TFLOP/s " in out
    assert "num_stages=3" in out and "\n   default:" in out


def test_the_default_has_a_row(run: Run, canned: Searching) -> None:
    canned(record=predicted(config=CONFIG, median_us=300.0), finished=EQUAL)
    (line,) = [each for each in run(*SMALL, *KERNEL).stdout.splitlines() if "default: " in each]
    assert line.split()[0] == "390.0"
    assert json.loads(run(*SMALL, *KERNEL, "--json").stdout)["default"]["config"] == DEFAULT
    canned(finished=EQUAL[:3])
    assert json.loads(run(*SMALL, *KERNEL, "--json", code=3).stdout)["default"] is None
