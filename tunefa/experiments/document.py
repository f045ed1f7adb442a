"""The results of an experiment as a document: one JSON file, from which tables and plots are made.

Nothing else is needed for them, so `--from FILE` works on any machine, and a number that is changed
in the file changes in the table, the plot and the page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tunefa.errors import TunefaError
from tunefa.store import results

SCHEMA = 1
MEASURED, MODELLED = "measured", "modelled"
Row = dict[str, Any]
"""One row of results: names and plain data."""


@dataclass(frozen=True)
class Document:
    """The results of one experiment on one chip."""

    experiment: str
    source: str
    """`MEASURED` on a device, or `MODELLED` for a chip that was not there."""
    arch: str
    device: str
    rows: Sequence[Row]
    made_with: Mapping[str, str] = field(default_factory=dict)
    """The versions of the libraries and the driver."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the measurement, such as the number of rounds."""
    date: str = field(default_factory=lambda: datetime.now(timezone.utc).date().isoformat())

    @property
    def is_measured(self) -> bool:
        """Whether the figures were measured."""
        return self.source == MEASURED

    @property
    def origin(self) -> str:
        """The origin of the figures, in words."""
        if self.is_measured:
            return f"measured on {self.device} ({self.arch}), {self.date}"
        return f"MODELLED for {self.device} ({self.arch}); nothing was measured"

    def to_data(self) -> dict[str, Any]:
        """Returns plain data for JSON; infinities and NaN become None."""
        data: dict[str, Any] = finite({"schema": SCHEMA, **asdict(self)})
        return data

    def save(self, path: Path) -> None:
        """Writes the file. Raises TunefaError if that fails."""
        results.write_text(path, json.dumps(self.to_data(), indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Document:
        """Reads a file. Raises TunefaError for one that is missing, damaged, or something else."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise TunefaError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:  # no JSON, or no UTF-8
            raise TunefaError(f"{path} is no JSON document: {error}") from error
        return cls.from_data(data, str(path))

    @classmethod
    def from_data(cls, data: Any, where: str) -> Document:
        """Reads plain data; `where` names its origin in errors. Raises TunefaError."""
        if not isinstance(data, dict) or "experiment" not in data:
            raise TunefaError(f"{where} is no result of an experiment: it names none")
        if data.get("schema") != SCHEMA:
            raise TunefaError(
                f"{where} has schema {data.get('schema')!r}, and this tunefa reads {SCHEMA}: "
                f"run the experiment again"
            )
        fields = {name: value for name, value in data.items() if name != "schema"}
        try:
            made = cls(**fields)
        except TypeError as error:
            raise TunefaError(f"{where} has wrong fields: {error}") from error
        if made.source not in (MEASURED, MODELLED):
            raise TunefaError(f"{where} has the source {made.source!r}, not measured or modelled")
        for name in ("experiment", "arch", "device", "date"):
            if not isinstance(getattr(made, name), str):
                raise TunefaError(f"{where} has a wrong {name}: {getattr(made, name)!r:.60}")
        if not isinstance(made.made_with, dict) or not isinstance(made.settings, dict):
            raise TunefaError(f"{where} has versions or settings without names")
        rows = made.rows
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TunefaError(f"{where} has rows that are no list of named figures")
        return made


def finite(data: Any) -> Any:
    """Returns plain data in which infinities and NaN, which JSON lacks, are None."""
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {str(key): finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return data
