"""tunefa/store/document.py: what a document of records is, and where one does not hold."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sample_records import measured, predicted
from tunefa.errors import TunefaError
from tunefa.spec import strict_yaml
from tunefa.store import document
from tunefa.store.record import SCHEMA

RECORDS = [measured(), predicted("q8192")]


def test_what_is_written_is_read() -> None:
    data = document.to_data(RECORDS)
    assert data["tunefa_schema"] == SCHEMA
    assert document.from_data(data, "here") == RECORDS
    assert document.from_data(document.to_data([]), "here") == []


def test_a_bare_list_is_the_oldest_document() -> None:
    entries = [record.to_dict() for record in RECORDS]
    assert document.from_data(entries, "here") == RECORDS


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (5, "here: not a results document of tunefa: it should begin with 'tunefa_schema: "),
        ({}, "here: not a results document"),
        ({"records": []}, "here: not a results document"),
        ({"tunefa_schema": SCHEMA + 1, "records": []}, f"reads up to {SCHEMA}): upgrade tunefa"),
        ({"tunefa_schema": 0, "records": []}, "tunefa_schema 0 is not a version"),
        ({"tunefa_schema": "2", "records": []}, "tunefa_schema"),
        ({"tunefa_schema": SCHEMA}, "key 'records' is missing"),
        ({"tunefa_schema": SCHEMA, "records": {}}, "records"),
        ({"tunefa_schema": SCHEMA, "records": [], "more": 1}, "'more'"),
        ({"tunefa_schema": SCHEMA, "records": [5]}, "here: record 1"),
    ],
)
def test_what_is_no_document_is_one_sentence(data: Any, says: str) -> None:
    with pytest.raises(TunefaError) as error:
        document.from_data(data, "here")
    assert says in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).startswith("here")


def test_the_record_that_does_not_hold_is_counted() -> None:
    data = document.to_data(RECORDS)
    del data["records"][1]["arch"]
    with pytest.raises(TunefaError, match=r"^here: record 2: key 'arch' is missing"):
        document.from_data(data, "here")


def test_a_yaml_file_s_record_has_a_line() -> None:
    """For a missing key it is the line where the record begins."""
    text = strict_yaml.dump(document.to_data(RECORDS))
    lines = text.splitlines()
    starts = [place for place, line in enumerate(lines, start=1) if line.startswith("- ")]
    spoiled = text.replace("  arch: sm90\n", "", 1)
    with pytest.raises(TunefaError, match=rf"^best\.yaml:{starts[0]}: record 1: key 'arch'"):
        document.from_data(strict_yaml.load(spoiled, "best.yaml"), "best.yaml")
