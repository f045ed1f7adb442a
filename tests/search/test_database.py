"""tunefa/search/database.py: studies in a database that the user names with --storage."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest

from tests.support.sample_problem import FEASIBLE, good, problem
from tunefa.errors import TunefaError
from tunefa.search import database, strategies, study


def test_searches_that_begin_a_database_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def begin(number: int) -> list[str]:
        together.wait()
        storage = database.opened(f"sqlite:///{tmp_path}/new.db")
        optuna.create_study(storage=storage, study_name=f"search-{number}")
        return optuna.get_all_study_names(storage)

    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(begin, range(4)))
    assert max(map(len, seen)) == 4


def test_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    for kernel in ("one", "two"):
        saved = study.Saved(database.opened(url), kernel)
        strategy = strategies.create("auto", problem(FEASIBLE), saved)
        config = strategy.ask()
        assert config is not None
        strategy.tell(good(config))
    assert sorted(optuna.get_all_study_names(url)) == ["one", "two"]
    assert len(optuna.load_study(study_name="two", storage=url).trials) == 1


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("study.db", "Could not parse"),
        ("sqlite:////no/such/folder/study.db", "unable to open"),
        ("nosuch://host/base", "nosuch"),
        ("", "Could not parse"),
    ],
)
def test_a_database_that_cannot_be_opened(url: str, why: str) -> None:
    with pytest.raises(TunefaError, match=why) as caught:
        database.opened(url)
    assert f"the storage {url!r} cannot be opened" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_database_of_another_optuna(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    database.opened(f"sqlite:///{path}")
    with sqlite3.connect(path) as held:
        held.execute("UPDATE alembic_version SET version_num = 'v9.9.9'")
    with pytest.raises(TunefaError, match=r"cannot be opened \(RuntimeError: "):
        database.opened(f"sqlite:///{path}")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nosuch://me:se:cr@et@host/base", "nosuch://me:***@host/base"),
        ("nosuch://me@host/base?password=secret&a=1", "nosuch://me@host/base?password=***&a=1"),
        ("nosuch://host:5432/base", "nosuch://host:5432/base"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
        ("//me:secret@host", "//me:***@host"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert database.without_password(url) == shown
    if not url.startswith("sqlite"):
        with pytest.raises(TunefaError) as caught:
            database.opened(url)
        assert repr(shown) in str(caught.value) and "secret" not in str(caught.value)
