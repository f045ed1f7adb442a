"""tunefa/cli/reports/trial_rows.py: configs that can be told apart, and the default's."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from tests.cli.conftest import Run
from tests.support.canned_search import CONFIG, SMALL, Searching
from tests.support.near_trials import DEFAULT, NEAR, trial
from tests.support.sample_records import measured, predicted
from tunefa.cli import targets
from tunefa.cli.reports.trial_rows import Row
from tunefa.compile.launch.driver import SeenDevice
from tunefa.costmodel.decision import SURE
from tunefa.search.budget import Budget
from tunefa.search.request import FinishedTrial, Request
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.trial import Trial
from tunefa.spec.workload import Workload

KERNEL = ("--kernel", "attention_fwd_triton")


def test_configs_that_the_model_cannot_tell_apart_are_one_row(
    run: Run, canned: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    canned(record=predicted(config=CONFIG), finished=NEAR)
    out = run(*SMALL, *KERNEL).stdout
    said = (
        "3 configs, 300.0 to 301.0 us, that the model cannot tell apart: L2_SECTION_HEADS 1, 4, 16"
    )
    assert said in out
    assert "told apart: configs of one kernel whose times differ by more than" in out
    first, second, third = json.loads(run(*SMALL, *KERNEL, "--json").stdout)["top"]
    assert first["group"]["size"] == 3 and second["group"] is third["group"] is None
    assert first["group"]["differ"] == {"L2_SECTION_HEADS": [1, 4, 16]}
    assert [(each["config"], each["median_us"]) for each in first["group"]["configs"]] == [
        (dict(each.config), each.median_us) for each in NEAR[:3]
    ]


def test_a_row_ends_where_the_model_s_error_ends(run: Run, canned: Searching) -> None:
    """A row is what the model cannot tell from its first config, not from its last."""
    stages = (1, 2, 3, 4, 5)
    canned(finished=[trial(300.0 * 1.01**n, num_stages=n) for n in stages])
    error = json.loads(run(*SMALL, *KERNEL, "--json", code=3).stdout)["top"][0]["group"]["error"]
    step = (1 + error) ** 0.6
    canned(finished=[trial(300.0 * step**n, num_stages=n) for n in stages])
    said = json.loads(run(*SMALL, *KERNEL, "--json", code=3).stdout)["top"]
    assert [row["group"]["size"] if row["group"] else 1 for row in said] == [2, 2, 1]


def test_the_default_among_them_is_said(run: Run, canned: Searching) -> None:
    canned(finished=[*NEAR[:3], replace(NEAR[4], predicted_us=301.0)])
    out = " ".join(run(*SMALL, *KERNEL, code=3).stdout.split())
    assert "4 configs, 300.0 to 301.0 us, that the model cannot tell apart, the default" in out


def test_the_recommended_config_has_one_row(run: Run, canned: Searching) -> None:
    """It may be the default too, and the model may see a faster one that it cannot tell from it."""
    default = replace(NEAR[4], predicted_us=301.0)
    canned(record=predicted(config=dict(DEFAULT)), finished=[*NEAR[:3], default])
    out = run(*SMALL, *KERNEL).stdout
    assert out.count("recommended, default: ") == 1
    assert "apart, the recommended and the default among them: " in " ".join(out.split())
    canned(record=predicted(config=CONFIG), finished=[*NEAR[:3], default])
    assert "recommended: BLOCK_M=128" in run(*SMALL, *KERNEL).stdout


def test_what_was_measured_is_told_apart(
    run: Run, canned: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "seen", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 10**11)])
    timed = [replace(each, samples_us=(each.predicted_us or 0.0,)) for each in NEAR]
    canned(record=measured(config=CONFIG), finished=timed)
    asked = ("search", "--seqlen", "4096", *KERNEL)
    said = json.loads(run(*asked, "--json").stdout)["top"]
    assert [(row["median_us"], row["interval_us"]) for row in said] == [
        (us, None) for us in (300, 300, 301, 480, 700)
    ]
    assert "interval" not in run(*asked).stdout and "told apart" not in run(*asked).stdout


def test_measured_configs_of_one_program_are_one_row(
    run: Run, canned: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A section of other heads is another launch, and a race may have timed only one of them."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(targets, "seen", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 10**11)])

    def timed(us: float, code: str, **changes: int) -> Trial:
        own = trial(us, **changes)
        assert own.resources is not None
        return replace(own, samples_us=(us,), resources=replace(own.resources, code=code))

    finished = [
        timed(300.0, "a"),
        timed(300.0, "a", L2_SECTION_HEADS=4),
        timed(302.0, "a", num_stages=3),
        timed(303.0, "b", num_stages=4),
        timed(304.0, "b", num_stages=5),
    ]
    canned(record=measured(config=CONFIG), finished=finished)
    asked = ("search", "--seqlen", "4096", *KERNEL)
    said = json.loads(run(*asked, "--json").stdout)["top"]
    assert [(row["median_us"], row["group"] and row["group"]["size"]) for row in said] == [
        (300.0, 2), (300.0, None), (303.0, 2),
    ]  # fmt: skip
    assert said[0]["group"]["error"] == 0.0
    out = run(*asked).stdout
    assert "2 configs that compile to one program: num_stages 2, 3" in out
    assert "told apart" not in out


def test_the_default_has_a_row(
    run: Run, canned: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    canned(record=predicted(config=CONFIG, median_us=300.0), finished=NEAR)
    (line,) = [each for each in run(*SMALL, *KERNEL).stdout.splitlines() if "default: " in each]
    assert line.split()[:2] == ["3", "700.0"]
    assert json.loads(run(*SMALL, *KERNEL, "--json").stdout)["default"]["config"] == DEFAULT
    canned(finished=NEAR[:3])
    assert json.loads(run(*SMALL, *KERNEL, "--json", code=3).stdout)["default"] is None


def test_configs_of_two_kernels_may_be_alike() -> None:
    """Errors of two kernels are independent, so both count."""
    names = ("attention_fwd_cuda_sm90", "attention_fwd_triton")
    served = tuple(map(kernels.load, names))
    workload, target = Workload.parse("q4096"), Target.named("sm90")
    request = Request(workload, target, False, served, Budget(trials=1))
    first, other = (
        FinishedTrial(name, trial(us)) for name, us in zip(names, (300, 310), strict=True)
    )
    row = Row(request, (first, other))
    sd = math.hypot(0.1, 0.1)
    assert row.comparison_error(other) == pytest.approx(math.expm1(SURE * sd))
    assert row.group(["default"]) == (
        "2 configs of attention_fwd_cuda_sm90 and attention_fwd_triton, 300.0 to 310.0 us, that "
        "the model cannot tell apart, the default among them"
    )
    assert row.differ == {"kernel": list(names)} and not row.is_apart(other)
    assert row.is_apart(FinishedTrial(names[1], trial(600.0)))
