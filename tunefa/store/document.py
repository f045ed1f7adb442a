"""The document that holds records: `{tunefa_schema: 1, records: [...]}`, in YAML or JSON.

Version 0 was a list of records. Version 0 and all later versions can still be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec.strict_yaml import Fields, Located
from tunefa.store import schema1
from tunefa.store.record import SCHEMA, Record

# Entry v turns a document of version v into one of version v + 1.
_MIGRATIONS: tuple[Callable[[Any], Any], ...] = (
    lambda records: {"tunefa_schema": 1, "records": records},
    schema1.document,
)


def to_data(records: Sequence[Record]) -> dict[str, Any]:
    """Returns the document of these records as plain data."""
    return {"tunefa_schema": SCHEMA, "records": [record.to_dict() for record in records]}


def from_data(data: Any, where: str) -> list[Record]:
    """Returns the records of a parsed document. `where` names its file and begins each message.

    Raises TunefaError if `data` is not a document of tunefa, has a newer schema, or has a record
    that is not valid; with the line, if `strict_yaml` parsed the data.
    """
    version = 0 if isinstance(data, list) else _version(data, where)
    for migrate in _MIGRATIONS[version:]:
        data = migrate(data)
    fields = Fields(data, where)
    fields.take("tunefa_schema", int)
    entries = fields.take("records", list)
    fields.done()
    return [_record(entry, i, where) for i, entry in enumerate(entries, start=1)]


def _version(data: Any, where: str) -> int:
    if not isinstance(data, dict) or "tunefa_schema" not in data:
        raise TunefaError(
            f"{where}: not a results document of tunefa: it should begin with "
            f"'tunefa_schema: {SCHEMA}'"
        )
    fields = Fields(data, where)
    version = fields.take("tunefa_schema", int)
    if version > SCHEMA:
        raise TunefaError(
            f"{fields.at('tunefa_schema')}: was written by a newer tunefa (schema {version}, "
            f"this one reads up to {SCHEMA}): upgrade tunefa"
        )
    if version < 1:
        raise TunefaError(
            f"{fields.at('tunefa_schema')}: tunefa_schema {version} is not a version: "
            f"it is {SCHEMA} in the newest documents"
        )
    return int(version)


def _record(entry: Any, number: int, where: str) -> Record:
    try:
        return Record.from_dict(entry, where)
    except TunefaError as error:
        message = str(error).removeprefix(where)
        if re.match(r":\d+: ", message):
            raise
        # A missing field has no line, so the message gives the record's first line.
        line = f":{min(entry.lines.values())}" if isinstance(entry, Located) and entry else ""
        raise TunefaError(f"{where}{line}: record {number}{message}") from None
