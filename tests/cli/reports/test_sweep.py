"""tunefa/cli/reports/sweep.py: what is said of a sweep."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from optuna.trial import create_trial

from tests.cli.conftest import Run
from tunefa.cli.reports import sweep, text
from tunefa.cli.reports.sweep import Reporter
from tunefa.spec.workload import Workload
from tunefa.sweep.clock import Clock
from tunefa.sweep.gpu_time import GpuTime
from tunefa.sweep.item_state import Standing
from tunefa.sweep.outcome import Outcome
from tunefa.sweep.slices import Slice

A, B = (f"sm90/NVIDIA H200/fwd_b1_h8_kv8_q{n}_k{n}_d64_bf16_causal" for n in (512, 1024))

W = Workload.parse("q512")


def slice_of(key: str, best_us: float, at: float) -> Slice:
    found = {"best_us": best_us, "default_us": 100.0, "at": at, "ended": 30.0, "kernel": "k"}
    worker = {"seat": "GPU 0"}
    attrs = {"item": key, "began": 10.0, "found": found, "worker": worker}
    return Slice.of(create_trial(value=best_us, user_attrs=attrs))


FOUND = Outcome(
    "tunefa-sweep-x", "study.log", True, Clock(60.0, None, 0.0), 42.0,
    (Standing(A, 3.0, W, None, 20.0, 9, 100.0, 80.0, 0.05), Standing(B, 1.0, W)),
    (slice_of(A, 90.0, 20.0), slice_of(A, 80.0, 40.0)),
    {A: 0.04, B: 0.1}, {"sm90/NVIDIA H200/w": "no kernel serves it"},
    {"GPU 1 of host": "its clocks were lowered"}, {},
)  # fmt: skip


def test_it_says_what_was_saved_and_what_is_left(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep.show(FOUND, text.console())
    out = capsys.readouterr().out
    assert "PREDICTED" not in out and "2 slices of 2 workloads in 42 s" in out
    assert "Saved: 0.6 of 4 weighted time, 15.00%" in out
    assert "Saved over the sweep: 7.50% at 20 s, 15.00% at 40 s" in out
    assert "Left on the table: 0.22 expected, 5.50%; 1 workload of weight 1 without a" in out
    assert "GPU 1 of host was put aside: its clocks were lowered" in out
    assert "w: left out, no kernel serves it" in out and "GPU 0 searched for 40 s" in out
    assert "Next: go on, with the same words and\n  --resume" in out
    sweep.show(replace(FOUND, measured=False), text.console())
    assert "PREDICTED" in capsys.readouterr().out


def test_it_says_how_to_go_on(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    def said(found: Outcome, joined: bool = False) -> str:
        sweep.show(found, text.console(), joined)
        return capsys.readouterr().out.partition("without a record\n")[2]

    over = replace(FOUND, aside={}, refused={}, slices=())
    larger = "The rest of the budget is too small for another search: 1 workload would need more\n"
    assert larger in said(over) and "--resume --budget 120s" in said(over)
    assert "--resume --budget 14" in said(replace(over, clock=Clock(None, 7)))
    assert said(replace(over, interrupted=True)).endswith("and\n  --resume\n")
    assert said(replace(over, errors={"GPU 0": "lost"})).endswith("and\n  --resume\n")
    failed = replace(over, items=(over.items[0], replace(over.items[1], failures=3)))
    assert "--resume" not in said(failed) and "tunefa show" in said(failed)
    assert "Next" not in said(over, joined=True)


def test_what_is_not_known_is_not_called_nothing(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    first = replace(FOUND.items[0], default_us=None)
    sweep.show(replace(FOUND, items=(first, FOUND.items[1])), text.console())
    row = next(line for line in capsys.readouterr().out.splitlines() if "_q512_" in line)
    assert row.split()[:4] == ["3", "-", "80.0", "-"]
    slower = replace(FOUND.items[0], best_us=100.4)
    sweep.show(replace(FOUND, items=(slower,), measured=False), text.console())
    assert "A record that is slower than the default is within" in capsys.readouterr().out


def test_it_says_what_each_gpu_waited_for(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    gpus = {"GPU 1": GpuTime(40.0, 10.0, 5.0, 4.0, 8.0)}
    sweep.show(replace(FOUND, gpus=gpus), text.console())
    out = capsys.readouterr().out
    assert (
        "GPU 1 timed and raced for 10 of 40 s (25.00%). No search was ready for it for 5 s" in out
    )
    assert (
        "waited for compilers for 4 s, and processes started for 8 s. While a search waits for"
        in out
    )
    assert "searched for" not in out
    (told,) = sweep.to_data(replace(FOUND, gpus=gpus))["gpus"].values()
    assert (told["busy_share"], told["compiling_s"]) == (0.25, 4.0)


def test_as_data() -> None:
    data = json.loads(json.dumps(sweep.to_data(FOUND)))
    first, second = data["workloads"]
    assert (first["gain"], first["kernel"], first["device"]) == (
        pytest.approx(0.2),
        "k",
        "NVIDIA H200",
    )
    assert second["gain"] is None and second["best_us"] is None
    assert data["course"] == [{"at": 20.0, "saved": pytest.approx(0.3)},
                              {"at": 40.0, "saved": pytest.approx(0.6)}]  # fmt: skip
    assert data["put_aside"] and data["refused"] and data["busy_s"] == {"GPU 0": 40.0}


def test_progress_is_a_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter() as reporter:
        reporter(FOUND)
        reporter(replace(FOUND, spent=43.0))
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "1 of 2 workloads have a record, 0 in progress, 15.00% of the weighted" in err
    assert "(70% of the budget)" in err
