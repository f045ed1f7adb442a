"""tunefa/report/content.py: the content of a page as JSON, there and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import sample_report
from tunefa.errors import TunefaError
from tunefa.report import page
from tunefa.report.content import Content


def saved(folder: Path, data: Any) -> Path:
    path = folder / "content.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@pytest.mark.parametrize("which", ["content", "hostile"])
def test_a_content_comes_back(tmp_path: Path, which: str) -> None:
    made: Content = getattr(sample_report, which)()
    read = Content.load(saved(tmp_path, made.to_data()))
    assert read.to_data() == made.to_data()
    assert page.render(read) == page.render(made)


def test_a_number_that_is_changed_changes_the_page(tmp_path: Path) -> None:
    """In the table, and in the plot, whose shapes move."""
    data = sample_report.content().to_data()
    data["searches"] = []  # their plots are others
    data["experiments"] = data["experiments"][1:2]
    whole = page.render(Content.load(saved(tmp_path, data)))
    data["experiments"][0]["rows"][0]["tunefa_us"] = 1.0
    changed = page.render(Content.load(saved(tmp_path, data)))
    assert "12.50×" in changed and "12.50×" not in whole
    plots = [text.split("<svg")[-1].split("</svg>")[0] for text in (whole, changed)]
    assert plots[0] != plots[1]
    data["records"][0]["median_us"] = 777.7
    assert "777.7" in page.render(Content.load(saved(tmp_path, data)))


def test_only_the_chips_that_are_asked_for_stay() -> None:
    made = sample_report.content().only(lambda arch, device: device is None)
    assert [record.objective for record in made.records] == ["predicted"]
    assert not made.searches and not made.failures and not made.experiments


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tunefa_report": 2}, "has schema 2, and this tunefa reads 1"),
        ({"records": 3}, "'records' must be"),
        ({"records": [3]}, "records[0]: expected a mapping"),
        ({"searches": [{}]}, "searches[0]: key 'journal' is missing"),
        ({"failures": [{"kernel": "k"}]}, "failures[0]: key 'arch' is missing"),
        ({"experiments": [3]}, "experiments[0] is no result of an experiment"),
        ({"remarks": {"store": "text"}}, "the remarks must be lists of texts"),
        ({"made": 3}, "'made' must be"),
        ({"odd": 3}, "unknown key 'odd'"),
    ],
)
def test_damaged_content_is_one_sentence(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    data = {**sample_report.content().to_data(), **change}
    with pytest.raises(TunefaError) as raised:
        Content.load(saved(tmp_path, data))
    assert says in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no JSON document"),
        ("[" * 100_000, "is no JSON document"),
        ("[]", "is no content of a report"),
        ('{"schema": 1, "experiment": "scaling"}', "is no content of a report"),
    ],
)
def test_what_is_no_content(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TunefaError, match=says):
        Content.load(saved(tmp_path, text))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match=r"cannot read .*gone"):
        Content.load(tmp_path / "gone")
