"""Export to JSON, and import: the same document as in YAML, for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tunefa.errors import TunefaError
from tunefa.store import document
from tunefa.store.record import Record

SUFFIXES = (".json",)
DESCRIPTION = "the same document as JSON, complete; `tunefa import` reads it"


def dump(records: Sequence[Record]) -> str:
    """Returns the records as one JSON document."""
    return json.dumps(document.to_data(records), indent=2, allow_nan=False) + "\n"


def load(text: str, where: str) -> list[Record]:
    """Returns the records of a JSON document.

    Raises TunefaError, with `where` and if possible the line, if it is not valid.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise TunefaError(f"{where}: key {key!r} is there twice: remove one of the two")
        return dict(pairs)

    def no_number(name: str) -> Any:
        raise TunefaError(f"{where}: {name} is not a number that JSON has")

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=no_number)
    except json.JSONDecodeError as error:
        raise TunefaError(f"{where}:{error.lineno}: not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of 4300 digits
        raise TunefaError(f"{where}: not JSON that can be read: {error}") from None
    return document.from_data(data, where)
