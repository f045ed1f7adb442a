"""tunefa/costmodel/training_rows.py: which trials are learned from, and with which times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_objective import KERNEL, TARGET, WORKLOAD
from tests.support.sample_journals import written
from tests.support.sample_landscapes import CONFIGS, compressed, raced, trial
from tunefa.costmodel import training_rows
from tunefa.errors import TunefaError
from tunefa.spec.trial import Trial
from tunefa.store import journal

A, B, C = CONFIGS[:3]
MADE = {"date": "2026-01-31T12:00:00+00:00", "source_hash": KERNEL.source_hash}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path / "home"))


def searched(*trials: Trial, **header: Any) -> Path:
    """The journal of a search with today's kernel, in graph mode."""
    said = {"workload": str(WORKLOAD), "mode": "graph", "provenance": {KERNEL.name: MADE}}
    return written("20260131T120000", *trials, kernel=KERNEL.name, **{**said, **header})


def times(found: training_rows.TrainingRows) -> dict[int, float | None]:
    """By the place of its config, the time of each row."""
    return {CONFIGS.index(row.trial.config): row.time_us for row in found.rows}


def test_a_row_has_a_case_a_trial_and_a_time() -> None:
    failed = Trial(B, "compile_failed", "no registers")
    found = training_rows.read([searched(trial(A, 90.0, 110.0), failed)])
    assert times(found) == {0: 100.0, 1: None} and not found.left_out
    row = found.rows[0]
    assert (row.case.kernel.name, row.case.workload) == (KERNEL.name, WORKLOAD)
    assert training_rows.place(row) == ("NVIDIA H200", str(WORKLOAD))
    assert list(found.groups()) == [(KERNEL.name, "sm90")]


def test_raced_times_are_scaled_to_screened_ones(tmp_path: Path) -> None:
    """In the race the clock is half, and B is before A: so A's screening was lucky."""
    a, b, c = trial(A, 100.0), trial(B, 105.0), trial(C, 300.0)
    again = [raced(a, 210.0, 210.0, 210.0), raced(b, 200.0, 200.0, 200.0)]
    found = training_rows.read([searched(a, b, c, *again)])
    by_config = times(found)
    assert by_config[2] == pytest.approx(300.0)
    assert by_config[0] / by_config[1] == pytest.approx(1.05)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"provenance": {KERNEL.name: {**MADE, "source_hash": "beef"}}},
         f"the source of {KERNEL.name} has changed since"),
        ({"objective": "replayed"}, "the search replayed another journal"),
        ({"objective": "predicted", "mode": None}, "nothing was measured"),
    ],
)  # fmt: skip
def test_trials_that_say_nothing_of_todays_kernel_are_counted(
    header: dict[str, Any], why: str
) -> None:
    samples = () if header.get("objective") == "predicted" else (100.0,)
    found = training_rows.read([searched(trial(A, *samples), trial(B, *samples), **header)])
    assert found.rows == () and found.left_out == {why: 2}


def test_a_kernel_that_is_gone_and_a_config_that_no_rule_allows_any_more() -> None:
    gone = written("20260131T120000", trial(A, 100.0), kernel="gone", workload=str(WORKLOAD))
    odd = trial({**A, "BLOCK_M": 7}, 100.0)
    other = trial({"BLOCK_M": 64}, 100.0)
    found = training_rows.read([gone, searched(odd, other, trial(A, 100.0))])
    assert times(found) == {0: 100.0}
    refused = f"the search space of {KERNEL.name} refuses the config today"
    assert found.left_out == {"there is no kernel gone any more": 1, refused: 2}


def test_trials_of_another_op_are_counted() -> None:
    path = written("20260131T120000", trial(A, 9.0), kernel="matmul_triton", workload="matmul_m64")
    found = training_rows.read([path])
    why = "only times of attention's forward pass are learned from, and these are of matmul"
    assert found.rows == () and found.left_out == {why: 1}


def test_of_several_trials_a_graph_counts_before_a_newer_eager_one() -> None:
    def made(day: int, mode: str, *trials: Trial) -> Path:
        date = {**MADE, "date": f"2026-01-{day:02}T12:00:00+00:00"}
        return searched(*trials, mode=mode, provenance={KERNEL.name: date})

    paths = [
        made(1, "graph", trial(A, 100.0), trial(B, 100.0)),
        made(2, "graph", trial(A, 200.0)),
        made(3, "eager", trial(A, 300.0), trial(C, 300.0)),
    ]
    found = training_rows.read(paths)
    assert times(found) == {0: 200.0, 1: 100.0, 2: 300.0}
    assert found.left_out == {"another trial of the config on this device is kept": 2}
    assert len(training_rows.read([*paths[:1], paths[0]]).rows) == 2


def test_a_short_time_in_eager_mode_may_be_the_hosts() -> None:
    short = trial(A, 20.0)
    assert len(training_rows.read([searched(short)]).rows) == 1
    found = training_rows.read([searched(short, trial(B, 80.0), mode="eager")])
    assert times(found) == {1: 80.0}
    assert list(found.left_out) == ["under 50 us in eager mode: it may be the host's time"]


def test_journals_are_found_in_folders_and_named_once(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    packed = compressed([trial(A, 1.0)], inner / "l.jsonl.xz")
    plain = searched(trial(A, 100.0)).rename(tmp_path / "j.jsonl")
    (tmp_path / "notes.txt").touch()
    assert training_rows.files([tmp_path, packed]) == [packed, plain]
    with pytest.raises(TunefaError, match="nowhere does not exist: name a journal"):
        training_rows.files([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(TunefaError, match="empty holds no journal"):
        training_rows.files([tmp_path / "empty"])


def test_the_users_journals_are_read_and_damaged_ones_are_named() -> None:
    searched(trial(A, 100.0))
    assert training_rows.of_user().rows
    damaged = journal.folder() / "20260201T120000-x.jsonl"
    damaged.write_text("5\n5\n")
    found = training_rows.of_user()
    assert len(found.rows) == 1 and str(damaged) in found.unread[0]
    with pytest.raises(TunefaError):
        training_rows.read([damaged])


def test_rows_of_other_devices_are_other_rows() -> None:
    h100 = searched(trial(A, 100.0), device="NVIDIA H100 80GB HBM3")
    found = training_rows.read([searched(trial(A, 90.0)), h100])
    assert {training_rows.place(row)[0] for row in found.rows} == {
        TARGET.device.name,
        "NVIDIA H100 80GB HBM3",
    }
