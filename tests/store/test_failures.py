"""tunefa/store/failures.py: which configs died in this user's searches, by their journals."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sample_journals import written
from tunefa.spec.trial import Trial
from tunefa.store import failures

OK = Trial({"A": 1}, "ok", predicted_us=500.0)
CRASHED = Trial({"A": 2}, "crashed", "signal 11")


def found() -> list[tuple[str, Any, str]]:
    return [(f.kernel, f.trial.config["A"], f.trial.outcome) for f in failures.failures()]


def test_no_journals() -> None:
    assert failures.failures() == []


def test_what_did_not_end_ok() -> None:
    path = written("20260101T000000", OK, CRASHED, Trial({"A": 3}, "wrong", "error 0.5"))
    assert found() == [("a_kernel", 2, "crashed"), ("a_kernel", 3, "wrong")]
    assert failures.failures()[0].to_dict() == {
        "kernel": "a_kernel",
        "outcome": "crashed",
        "reason": "signal 11",
        "config": {"A": 2},
        "workload": "fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal",
        "arch": "sm90",
        "device": "NVIDIA H200",
        "date": "2026-01-01T00:00:00+00:00",
        "journal": str(path),
    }


def test_what_became_of_a_config_last_counts() -> None:
    written("20260101T000000", OK, CRASHED, Trial({"A": 1}, "wrong"), Trial({"A": 2}, "ok"))
    assert found() == [("a_kernel", 1, "wrong")]


def test_the_newest_journal_is_first() -> None:
    for year, config in ((2025, 1), (2027, 2), (2026, 3)):
        written(f"{year}0101T000000", Trial({"A": config}, "timeout"))
    assert [config for _, config, _ in found()] == [2, 3, 1]


@pytest.mark.parametrize(
    ("content", "warning"),
    [
        (
            b"nonsense\nmore\n",
            "journal left out: {path}:1: this line is not the first line of a journal",
        ),
        (b'{"tunefa_journal": 5}\n', "journal left out: {path}:1: was written by a newer tunefa"),
        (b'{"tunefa_journal": 1}\n', "journal left out: {path}:1: does not say what was searched"),
    ],
)
def test_a_broken_journal_hides_nothing_else(content: bytes, warning: str) -> None:
    written("20260101T000000", CRASHED)
    path = written("20270101T000000", CRASHED)
    path.write_bytes(content)
    with pytest.warns(UserWarning) as caught:
        assert found() == [("a_kernel", 2, "crashed")]
    assert [str(each.message).startswith(warning.format(path=path)) for each in caught] == [True]


def test_what_is_before_a_broken_line_is_listed() -> None:
    path = written("20260101T000000", CRASHED, CRASHED, OK)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], "{\n", *lines[3:]]))
    with pytest.warns(UserWarning, match=f"^rest of a journal left out: {path}:3: "):
        assert found() == [("a_kernel", 2, "crashed")]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("content", ["", '{"tunefa_jour'])
def test_a_search_that_died_at_once_has_no_failures(content: str) -> None:
    written("20260101T000000", CRASHED).write_text(content)
    assert found() == []
