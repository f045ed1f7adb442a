"""tunefa/store/predictors.py: which predictions are those of the newest model."""

from __future__ import annotations

from tests.support.sample_records import dated, measured, predicted
from tunefa.store.predictors import of_newest_model


def test_measured_records_have_no_model() -> None:
    old, new = (measured(provenance=dated(f"2025-0{n}-01", learned=f"{n}")) for n in (1, 2))
    assert of_newest_model([old, new]) == [old, new]


def test_each_workload_has_its_own_newest_model() -> None:
    old, new = (dated(f"2025-0{n}-01", model=1, learned=f"{n}") for n in (1, 2))
    records = [predicted(provenance=old), predicted("q1024", provenance=old)]
    assert of_newest_model(records) == records
    renewed = predicted("q1024", provenance=new)
    assert of_newest_model([*records, renewed]) == [records[0], renewed]


def test_a_version_comes_before_a_date_and_an_id_of_another_type_is_none() -> None:
    newest = predicted(provenance=dated("2025-01-01", model=2, learned=7))
    older = predicted(provenance=dated("2025-02-01", model=1, learned="a"))
    assert of_newest_model([older, newest]) == [newest]
    assert newest.model == (2, None)
