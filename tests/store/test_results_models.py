"""tunefa/store/results.py: predictions of different versions of a model are not compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.sample_records import dated, predicted
from tunefa.store import results as store


def test_what_an_older_model_promised_is_not_compared(tmp_path: Path) -> None:
    """An older model's time is lower, of the same kernel and of another: today's record stands."""
    kept = store.Store([tmp_path])
    same = {"triton": "3.7.1"}
    now = predicted(median_us=30.0, provenance=dated("2025-01-31", model=2, **same))
    for older in (
        predicted(median_us=3.0, provenance=dated("2025-02-28", **same)),
        predicted(median_us=3.0, provenance=dated("2025-02-28", model=1, **same), kernel="other"),
    ):
        kept.add(replace(older, config={"BLOCK_M": 64}))
    kept.add(now)
    assert kept.best() == [now]
    assert min(kept.records(), key=lambda record: record.rank) == now
    again = predicted(median_us=20.0, provenance=dated("2025-01-30", model=2, **same), kernel="b")
    kept.add(again)
    assert kept.best() == [again], "one model's times are compared"


def test_what_a_model_promised_that_had_learned_something_else_is_not_compared(
    tmp_path: Path,
) -> None:
    """An older prediction is lower, of the same kernel and of another: the newest model counts."""
    kept = store.Store([tmp_path])
    made = dated("2025-02-28", model=2, learned="new")
    now = predicted(median_us=30.0, provenance=made)
    for learned in ("older", "old"):
        for kernel in (now.kernel, "other"):
            older = dated("2025-01-31", model=2, learned=learned)
            config = {"BLOCK_M": 64, "learned": learned}
            kept.add(predicted(median_us=3.0, provenance=older, kernel=kernel, config=config))
    kept.add(now)
    assert kept.best() == store.current(kept.records()) == [now]
    same = predicted(median_us=20.0, provenance={**made, "date": "2025-01-30"}, kernel="b")
    kept.add(same)
    assert kept.best() == [same], "one model's times are compared"
    forgotten = predicted(median_us=90.0, provenance=dated("2025-03-01", model=2), kernel="c")
    kept.add(forgotten)
    assert kept.best() == [forgotten], "what was learned is not used any more"
