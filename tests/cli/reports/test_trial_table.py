"""tunefa/cli/reports/trial_table.py: the table of a search's report, in every width."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run
from tests.support.canned_search import CONFIG, SMALL, Searching
from tests.support.near_trials import NEAR, trial
from tests.support.sample_records import predicted

KERNEL = ("--kernel", "attention_fwd_triton")


def table(out: str) -> list[str]:
    """The lines of the table, without what follows it."""
    return out.split("90% interval: ")[0].splitlines()[3:]


def test_a_config_that_spills_is_not_on_top_of_a_near_one(run: Run, canned: Searching) -> None:
    canned(finished=[trial(300.0, spill_bytes=8), trial(340.0, num_stages=3)])
    assert json.loads(run(*SMALL, "--json", code=3).stdout)["top"][0]["median_us"] == 340
    reason = "order: a config that spills registers counts as 15% slower, the model's error"
    assert reason in run(*SMALL, code=3).stdout
    canned(finished=[trial(300.0), trial(250.0), trial(800.0)])
    assert "order: " not in run(*SMALL, code=3).stdout


@pytest.mark.parametrize("columns", [40, 60])
def test_no_figure_is_cut_off_in_a_narrow_terminal(
    run: Run, canned: Searching, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    canned(record=predicted(config=CONFIG, median_us=300.0), finished=NEAR)
    lines = table(run(*SMALL, *KERNEL).stdout)
    assert max(map(len, lines)) <= columns
    words = "1 us 300.0, 90% interval 254 to 354," if columns == 40 else "1 300.0 254 to 354 458.2"
    assert any(" ".join(line.split()).startswith(words) for line in lines)
    assert "num_stages=3" in "".join(lines)
    assert any(line.startswith("   default:") for line in lines)


def test_configs_stand_below_their_figures_or_beside_them(
    run: Run, canned: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned(record=predicted(config=CONFIG, median_us=300.0), finished=NEAR)
    figures = "2 480.0 407 to 566 286.4 168 96.0 1 latency"
    below = [" ".join(line.split()) for line in table(run(*SMALL, *KERNEL).stdout)]
    assert below[below.index(figures) + 1].startswith("BLOCK_M=128")
    monkeypatch.setenv("COLUMNS", "160")
    beside = [" ".join(line.split()) for line in table(run(*SMALL, *KERNEL).stdout)]
    assert any(line.startswith(f"{figures} BLOCK_M=128") for line in beside)
