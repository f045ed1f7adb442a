"""The content of a page as one JSON document, from which the page is made on any machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tunefa._version import __version__
from tunefa.errors import TunefaError
from tunefa.experiments.document import Document
from tunefa.report.search import Search
from tunefa.spec import regular_file
from tunefa.spec.strict_yaml import Fields
from tunefa.store.record import Record

SCHEMA = 1
KIND = "tunefa_report"
"""The key whose value is the schema; other documents lack it."""
STORE, JOURNALS, EXPERIMENTS = "store", "journals", "experiments"
"""The places that remarks are about."""


@dataclass(frozen=True)
class FailureCount:
    """The configs of a kernel that failed for one reason, in all searches on a chip."""

    kernel: str
    arch: str
    device: str
    outcome: str
    reason: str
    count: int


@dataclass(frozen=True)
class Content:
    """Everything that a page shows."""

    records: Sequence[Record] = ()
    """The best record of each workload and chip."""
    searches: Sequence[Search] = ()
    failures: Sequence[FailureCount] = ()
    experiments: Sequence[Document] = ()
    remarks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Notes on what was left out and why, by `STORE`, `JOURNALS` and `EXPERIMENTS`."""
    made: str = field(default_factory=lambda: datetime.now(timezone.utc).date().isoformat())
    version: str = __version__

    def only(self, keeps: Callable[[str, str | None], bool]) -> Content:
        """Returns what belongs to the chips, by arch and device, for which `keeps` is true."""
        return replace(
            self,
            records=[each for each in self.records if keeps(each.arch, each.device)],
            searches=[each for each in self.searches if keeps(each.arch, each.device)],
            failures=[each for each in self.failures if keeps(each.arch, each.device)],
            experiments=[each for each in self.experiments if keeps(each.arch, each.device)],
        )

    def to_data(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            KIND: SCHEMA,
            "made": self.made,
            "version": self.version,
            "records": [record.to_dict() for record in self.records],
            "searches": [search.to_data() for search in self.searches],
            "failures": [asdict(each) for each in self.failures],
            "experiments": [document.to_data() for document in self.experiments],
            "remarks": {name: list(said) for name, said in self.remarks.items()},
        }

    @classmethod
    def load(cls, path: Path) -> Content:
        """Reads a file that has what `to_data` returned. Raises TunefaError if it does not."""
        try:
            data = json.loads(regular_file.content(path).decode("utf-8"))
        except OSError as error:
            raise TunefaError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise TunefaError(
                f"{path} is no JSON document ({error}): write one with `tunefa report --json`"
            ) from error
        return cls.from_data(data, str(path))

    @classmethod
    def from_data(cls, data: Any, where: str) -> Content:
        """Reads plain data; `where` begins each message. Raises TunefaError if it is not valid."""
        if not isinstance(data, dict) or KIND not in data:
            raise TunefaError(
                f"{where} is no content of a report: write one with `tunefa report --json`"
            )
        if data[KIND] != SCHEMA:
            raise TunefaError(
                f"{where} has schema {data[KIND]!r:.60}, and this tunefa reads {SCHEMA}: "
                "write it again with `tunefa report --json`"
            )
        fields = Fields({key: value for key, value in data.items() if key != KIND}, where)

        def listed(name: str, read: Callable[[Any, str], Any]) -> list[Any]:
            rows = enumerate(fields.take(name, list))
            return [read(row, f"{where}: {name}[{place}]") for place, row in rows]

        made = cls(
            records=listed("records", Record.from_dict),
            searches=listed("searches", Search.from_data),
            failures=listed("failures", _failure),
            experiments=listed("experiments", Document.from_data),
            remarks=_remarks(fields.take("remarks", dict), where),
            made=fields.take("made", str),
            version=fields.take("version", str),
        )
        fields.done()
        return made


def _failure(data: Any, where: str) -> FailureCount:
    fields = Fields(data, where)
    texts = {
        name: fields.take(name, str) for name in ("kernel", "arch", "device", "outcome", "reason")
    }
    count = fields.take("count", int)
    fields.done()
    return FailureCount(count=count, **texts)


def _remarks(data: Mapping[Any, Any], where: str) -> dict[str, list[str]]:
    for said in data.values():
        if not isinstance(said, list) or not all(isinstance(each, str) for each in said):
            raise TunefaError(f"{where}: the remarks must be lists of texts")
    return {str(name): list(said) for name, said in data.items()}
