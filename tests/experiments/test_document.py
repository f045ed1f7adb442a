"""Documents of experiments: what is written is read, and what is damaged is named."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tunefa.errors import TunefaError
from tunefa.experiments.document import MEASURED, MODELLED, SCHEMA, Document

DOCUMENT = Document("scaling", MEASURED, "sm90", "NVIDIA H200", [{"workload": "q512", "us": 1.5}])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "scaling.json"
    DOCUMENT.save(path)
    assert Document.load(path) == DOCUMENT
    assert json.loads(path.read_text())["schema"] == SCHEMA


def test_figures_that_are_not_finite_become_null(tmp_path: Path) -> None:
    document = Document("a", MEASURED, "sm90", "H200", [{"us": math.inf, "more": [math.nan, 1]}])
    assert document.to_data()["rows"] == [{"us": None, "more": [None, 1]}]


def test_the_origin_says_whether_it_was_measured() -> None:
    assert DOCUMENT.origin.startswith("measured on NVIDIA H200 (sm90), 20")
    modelled = Document("a", MODELLED, "sm90", "NVIDIA H200", [])
    assert modelled.origin == "MODELLED for NVIDIA H200 (sm90); nothing was measured"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON document"),
        ("[1, 2]", "is no result of an experiment"),
        ("{}", "is no result of an experiment"),
        (json.dumps({"experiment": "scaling", "schema": 7}), "has schema 7, and this tunefa reads"),
        (json.dumps({**DOCUMENT.to_data(), "rows": 5}), "rows that are no list"),
        (json.dumps({**DOCUMENT.to_data(), "rows": [5]}), "rows that are no list"),
        (json.dumps({**DOCUMENT.to_data(), "source": "guessed"}), "the source 'guessed'"),
        (json.dumps({**DOCUMENT.to_data(), "colour": "blue"}), "wrong fields"),
        (json.dumps({"experiment": "scaling", "schema": SCHEMA}), "wrong fields"),
    ],
)
def test_a_damaged_file_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(text)
    with pytest.raises(TunefaError, match=said) as caught:
        Document.load(path)
    assert "damaged.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "binary.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TunefaError, match="is no JSON document"):
        Document.load(path)


def test_a_missing_file_and_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match=r"cannot read .*none\.json: No such file"):
        Document.load(tmp_path / "none.json")
    (tmp_path / "file").write_text("")
    unwritable: Any = tmp_path / "file" / "out.json"
    with pytest.raises(TunefaError, match="cannot write"):
        DOCUMENT.save(unwritable)
