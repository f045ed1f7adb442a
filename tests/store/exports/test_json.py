"""tunefa/store/exports/json.py: what is no document of results is one sentence."""

from __future__ import annotations

import pytest

from tunefa.errors import TunefaError
from tunefa.store import exports


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"tunefa_schema": 1,\n"records": [', "best.json:2: not JSON"),
        ('{"tunefa_schema": 1, "tunefa_schema": 1, "records": []}', "'tunefa_schema' is there tw"),
        ('{"tunefa_schema": 1, "records": [NaN]}', "best.json: NaN"),
        ('{"tunefa_schema": 7, "records": []}', "newer tunefa (schema 7"),
        ('{"tunefa_schema": 1, "records": [{}]}', "best.json: record 1: key 'kernel' is missing"),
        ("[" * 100_000, "best.json: not JSON"),
        ("9" * 5000, "best.json: not JSON"),
        ("", "best.json:1: not JSON"),
        ("5", "best.json: not a results document"),
    ],
)
def test_broken_json_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(TunefaError) as error:
        exports.readable("json").load(text, "best.json")
    assert says in str(error.value)
