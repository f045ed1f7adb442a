"""Export to YAML, and import: the document that the store itself uses."""

from __future__ import annotations

from collections.abc import Sequence

from tunefa.store import document
from tunefa.store.record import Record

SUFFIXES = (".yaml", ".yml")
DESCRIPTION = "tunefa's own document, complete; `tunefa import` and the runtime read it"


def dump(records: Sequence[Record]) -> str:
    """Returns the records as one YAML document."""
    return document.to_text(records)


def load(text: str, where: str) -> list[Record]:
    """Returns the records of a YAML document. Raises TunefaError, with the line, if not valid."""
    return document.from_text(text, where)
