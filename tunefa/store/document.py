"""The document that holds records: `{tunefa_schema: 1, records: [...]}`, in YAML or JSON.

Version 0 was a list of records. Version 0 and all later versions can still be read. In YAML the
first line is a comment with the checksum of the rest, so that a file that was cut short or changed
is noticed. A file without that line, by hand or by an older tunefa, is read as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec import strict_yaml
from tunefa.spec.strict_yaml import Fields, Located
from tunefa.store import checksum, schema1
from tunefa.store.record import SCHEMA, Record

# Entry v turns a document of version v into one of version v + 1.
_MIGRATIONS: tuple[Callable[[Any], Any], ...] = (
    lambda records: {"tunefa_schema": 1, "records": records},
    schema1.document,
)


_FIRST_LINE = re.compile(r"\ufeff?# checksum ([0-9a-f]{16}): [^\n]*\n")
_CHECKSUM_WORDS = "# checksum "


def to_text(records: Sequence[Record]) -> str:
    """Returns the document of these records in YAML, with its checksum."""
    text = strict_yaml.dump(to_data(records))
    return (
        f"{_CHECKSUM_WORDS}{checksum.of(text)}: remove this line if you change the file by hand\n"
        f"{text}"
    )


def from_text(text: str, where: str) -> list[Record]:
    """Returns the records of a YAML document. `where` names its file and begins each message.

    Raises TunefaError if the text has a checksum that is not that of the rest, and where
    `strict_yaml.load_text` and `from_data` raise it.
    """
    if text.lstrip("\ufeff").startswith(_CHECKSUM_WORDS):
        first = _FIRST_LINE.match(text)
        if first is None or first[1] != checksum.of(text[first.end() :]):
            raise TunefaError(
                f"{where}:1: the file was cut short or changed since tunefa wrote it, as its "
                "checksum says: restore it, or remove its first line to accept the change"
            )
    return from_data(strict_yaml.load_text(text, where), where)


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
