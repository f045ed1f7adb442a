"""The database of a user, in which Optuna keeps studies."""

from __future__ import annotations

import random
import re
import sys
import time

import optuna
from optuna.storages import BaseStorage

from tunefa.errors import TunefaError

_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""The pauses before a new database is opened once more."""
_MADE_MEANWHILE = re.compile(r"already exists|unique|duplicate|locked", re.IGNORECASE)
"""Words of SQLite, PostgreSQL and MySQL for a table or row that another process has just made."""


def errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """The errors of SQLAlchemy, and others. SQLAlchemy takes a quarter of a second to import, and
    raises none before Optuna has imported it."""
    imported = sys.modules.get("sqlalchemy.exc")
    return others if imported is None else (*others, imported.SQLAlchemyError)


def opened(url: str) -> BaseStorage:
    """The storage in the database at a URL, in SQLAlchemy's form.

    Raises TunefaError if it cannot be opened, or was written by another version of Optuna.
    """
    refusals = (ImportError, ValueError, RuntimeError)  # RuntimeError: an unknown schema
    try:
        return _opened(url)
    except errors(*refusals, optuna.exceptions.OptunaError) as error:
        shown = without_password(url)
        why = f"{type(error).__name__}: {first_line(error).replace(url, shown)}"
        raise TunefaError(
            f"the storage {shown!r} cannot be opened ({why}): give a URL that SQLAlchemy and an "
            "installed driver understand, such as sqlite:///study.db"
        ) from error


def _opened(url: str) -> BaseStorage:
    """Opens a database, and makes its tables where there are none.

    Optuna looks whether a table is there and then makes it. Of several searches that begin a
    database at once, one makes it in between, so the others look again.
    """
    for pause_s in _PAUSES_S:
        try:
            return optuna.storages.get_storage(url)
        except errors(optuna.exceptions.StorageInternalError) as error:
            if not _MADE_MEANWHILE.search(f"{error} {error.__cause__}"):
                raise
            time.sleep(pause_s * random.uniform(0.5, 1.5))  # the others wait for other times
    return optuna.storages.get_storage(url)


def without_password(url: str) -> str:
    """The URL of a database with its password hidden."""
    hidden = re.sub(r"(//[^:/@]*:).*@", r"\1***@", url)
    return re.sub(r"(pass(?:word|wd)?=)[^&]*", r"\1***", hidden, flags=re.IGNORECASE)


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).splitlines() or [""])[0]
