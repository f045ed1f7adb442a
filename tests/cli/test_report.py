"""tunefa report: the command, its files and its mistakes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support import sample_report
from tests.support.sample_records import measured, predicted
from tunefa.store import results as store


@pytest.fixture
def full(home: Path, tmp_path: Path) -> Path:
    """A folder of experiments, beside a store and a journal."""
    for record in (measured(), predicted("q2048", arch="sm80")):
        store.default_store().add(record)
    sample_report.journal("20260131T120000")
    folder = tmp_path / "experiments"
    folder.mkdir()
    sample_report.scaling().save(folder / "scaling.json")
    return folder


def test_the_page_is_written_and_named(run: Run, full: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    out = run("report", "--out", str(path), "--experiments", str(full)).stdout
    html = path.read_text(encoding="utf-8")
    size = path.stat().st_size / 1024
    assert out == f"{path} ({size:,.1f} KiB)\n"
    assert "412.5" in html and "a_kernel" in html and "20260131T120000" in html
    assert "How much faster" in html and "an illegal memory access" in html


def test_the_page_of_json_is_the_same(run: Run, full: Path, tmp_path: Path) -> None:
    data, first, second = (tmp_path / name for name in ("all.json", "1.html", "2.html"))
    data.write_text(run("report", "--json", "--experiments", str(full)).stdout)
    run("report", "--out", str(first), "--experiments", str(full))
    run("report", "--out", str(second), "--from", str(data))
    assert first.read_text() == second.read_text()
    again = run("report", "--from", str(data), "--json").stdout
    assert json.loads(again) == json.loads(data.read_text())


@pytest.mark.parametrize("how", [["--experiments"], ["--from"]])
def test_a_chip_selects_everything(run: Run, full: Path, tmp_path: Path, how: list[str]) -> None:
    saved = tmp_path / "all.json"
    saved.write_text(run("report", "--json", "--experiments", str(full)).stdout)
    place = {"--experiments": full, "--from": saved}[how[0]]
    counts = {}
    for arch in ("sm80", "h200", "h100"):
        data = json.loads(run("report", "--json", "--arch", arch, *how, str(place)).stdout)
        counts[arch] = [len(data[name]) for name in ("records", "searches", "failures")]
        counts[arch].append(len(data["experiments"]))
    assert counts == {"sm80": [1, 0, 0, 0], "h200": [1, 1, 1, 1], "h100": [0, 0, 0, 0]}


def test_an_empty_store_makes_a_page(run: Run, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    run("report", "--out", str(path))
    assert path.read_text().count('<p class="empty">') == 8


def test_json_needs_no_library(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert json.loads(run("report", "--json").stdout)["tunefa_report"] == 1
    done = run("report", "--out", str(tmp_path / "page.html"), code=1)
    assert "Error: the page needs Jinja2, which is not installed" in done.stderr
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--out", "gone/page.html"], 1, "Error: cannot write gone/page.html: the folder"),
        (["--out", "."], 2, "is a directory"),
        (["--experiments", "gone"], 2, "does not exist"),
        (["--from", "gone.json"], 2, "does not exist"),
        (["--from", "odd.json"], 1, "Error: odd.json is no JSON document"),
        (["--from", "odd.json", "--experiments", "."], 2, "leave out --experiments"),
        (["--arch", "sm999"], 1, "sm999"),
    ],
)
def test_mistakes_are_one_sentence(run: Run, words: list[str], code: int, says: str) -> None:
    Path("odd.json").write_text("{")
    done = run("report", *words, code=code)
    assert says in done.stderr and "Traceback" not in done.stderr
