"""Every test of the command line has a home of its own and a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support import canned_search
from tests.support.canned_search import Searching
from tests.support.made_here import made_here
from tests.support.sample_records import dated, measured, predicted
from tunefa.cli import main, targets
from tunefa.store import results as store
from tunefa.store.record import Record

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TUNEFA_HOME; the current folder is another new one, and the terminal has 80 columns."""
    folder = tmp_path / "home"
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("TUNEFA_HOME", str(folder))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(targets, "seen", lambda: [])
    return folder


@pytest.fixture
def run() -> Run:
    """Runs `tunefa` with some arguments; what escapes it is a bug and fails the test."""

    def invoke(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, arguments, prog_name="tunefa")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.stderr or result.stdout
        return result

    return invoke


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Searching:
    """Replaces the search by one that finds the given things; returns the requests it gets."""
    return canned_search.replaced(monkeypatch, tmp_path)


@pytest.fixture
def filled(home: Path) -> list[Record]:
    """Three records in the store."""
    records = [
        measured(),
        predicted("q8192"),
        measured("q4096_full", provenance=dated("2026-01-31T12:00:00+00:00")),
    ]
    for record in records:
        store.default_store().add(record)
    return records


@pytest.fixture
def lockable() -> list[Record]:
    """Five records in the store; the first two are the best measured of their workload."""
    predicted_only: dict[str, Any] = {"device": None, "objective": "predicted", "mode": None}
    known = [
        made_here("q8192"),
        made_here("q4096", median_us=100.0),
        made_here("q4096", config={**made_here().config, "BLOCK_N": 128}),
        made_here(**predicted_only),
        made_here("q1024", **predicted_only),
    ]
    for each in known:
        store.default_store().add(each)
    return known
