"""Results on disk: files of records, which are replaced as a whole, and folders of such files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tunefa import assets
from tunefa.errors import TunefaError
from tunefa.spec import strict_yaml
from tunefa.store import document, predictors, trust, whole_file
from tunefa.store.record import Record


def user_root() -> Path:
    """Returns the folder of this user's results."""
    return assets.home() / "results"


def shipped_root() -> Path:
    """The folder of the results that tunefa ships."""
    return assets.root("results")


def default_store() -> Store:
    """Returns the store of the user's own results and, after them, the results in tunefa."""
    return Store([user_root(), shipped_root()])


def read(path: Path) -> list[Record]:
    """Returns the records of one YAML file.

    Raises TunefaError, with the file and if possible the line, if the file is missing, is not text
    or strict YAML, was changed since tunefa wrote it, has a newer schema, or has a record that is
    not valid.
    """
    return document.from_text(strict_yaml.read_text(path), str(path))


def write(path: Path, records: Sequence[Record]) -> None:
    """Replaces the file at `path` by one with these records, in one step.

    Raises TunefaError if the folder cannot be written, and if the file at `path` is not one of
    results: then it stays as it is.
    """
    if error := _why_keep(path):
        raise TunefaError(f"{error}; not overwritten: move it away first")
    write_text(path, document.to_text(records))


def write_text(path: Path, text: str) -> None:
    """Replaces the file at `path` by `text` in UTF-8, see `whole_file.write`."""
    whole_file.write(path, text.encode("utf-8"))


def current(records: Sequence[Record]) -> list[Record]:
    """Returns the records that no other record supersedes, in their order.

    A record may supersede one with the same kernel, arch, device, workload, objective and mode. Of
    measured records the newest counts: searches and `tunefa verify` race the stored configs again,
    and an older time may be lower only because of an older driver or compiler. Of records that were
    not measured, those of the newest model of time count, then the newest; of those with the same
    versions, the lowest time. Predictions of other models than the newest record's are left out,
    those of other kernels, too (see `tunefa.store.predictors`).
    """
    records = predictors.of_newest_model(records)
    standing: dict[tuple[object, ...], Record] = {}
    for record in records:
        held = standing.setdefault(question(record), record)
        if (record.model_version, record.timestamp) > (held.model_version, held.timestamp):
            standing[question(record)] = record
    for record in records:
        held = standing[question(record)]
        comparable = record.device is None and _versions(record) == _versions(held)
        if comparable and record.median_us < held.median_us:
            standing[question(record)] = record
    return [record for record in records if standing[question(record)] is record]


def question(record: Record) -> tuple[object, ...]:
    """Returns what records must share for one to supersede the other."""
    what = (record.workload, record.kernel, record.objective, record.mode)
    return record.arch, record.device, *what


def place(record: Record) -> tuple[str, str, str]:
    """Returns (arch, device, workload and `Record.functions`), of which one record is the best."""
    return record.arch, record.device or "", f"{record.workload} {record.functions}".rstrip()


def _versions(record: Record) -> list[object]:
    """Returns the versions that a predicted time depends on: cost model, kernel and compiler."""
    made = record.provenance
    return [
        *record.model,
        record.source_hash,
        *(made.get(name) for name in ("tunefa", "triton", "compiler")),
    ]


class Store:
    """Records in several roots: folders of YAML files, or single files.

    Of copies of a record (see `Record.origin`), the one in the earlier root counts. New records are
    written to the first root.
    There are no locks: each record has its own file, which is replaced in one step, so searches
    that run at the same time do not lose results.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(Path(root) for root in roots)
        self._cache: dict[Path, tuple[tuple[int, ...], list[Record]]] = {}

    def records(self) -> list[Record]:
        """Returns all records, in the order of roots and of file names.

        Files that did not change since the last call are not read again. A file that cannot be
        read, or that another user may have written, is left out, with a warning.
        """
        found: dict[tuple[object, ...], Record] = {}
        for root in self.roots:
            for path in _trusted(root, list(_files(root))):
                for record in self._read_cached(path):
                    found.setdefault(record.origin, record)
        return list(found.values())

    def best(self, among: Callable[[Record], bool] = lambda _: True) -> list[Record]:
        """Returns the best current record of each (arch, device, workload), sorted by these three.

        Only records for which `among` is true are considered.
        """
        best: dict[tuple[str, str, str], Record] = {}
        for record in filter(among, current(self.records())):
            key = place(record)
            if key not in best or record.rank < best[key].rank:
                best[key] = record
        return [best[key] for key in sorted(best)]

    def current(self, records: Sequence[Record]) -> list[Record]:
        """Returns those of these records of the store that no other one supersedes."""
        return current(records)

    def remark(self, record: Record) -> str:
        """Returns what must be said where this record is chosen; nothing, in a plain store."""
        return ""

    def add(self, record: Record) -> Path:
        """Writes a record to the first root, and returns its file.

        It replaces a record with the same config, device, workload, mode and kernel source. If the
        file of that record cannot be read (it may be a newer tunefa's), it stays, and the new
        record gets another name. Raises TunefaError if the folder cannot be written.
        """
        if not self.roots:
            raise TunefaError("this store has no folder to write to")
        folder = self.roots[0] / record.arch / _slug(record.device or record.objective)
        try:
            assets.make_folder(folder)
        except OSError as error:
            raise whole_file.cannot_write(folder, error) from error
        stem = f"{record.workload}--{record.kernel}--{_digest(record)}"
        path, copies = folder / f"{stem}.yaml", 1
        while _why_keep(path):
            copies += 1
            path = folder / f"{stem}-{copies}.yaml"
        write(path, [record])
        assets.clean(folder, ".*.tmp")
        return path

    def own(self) -> list[tuple[Path, Record]]:
        """Returns every record of the first root and its file, copies included."""
        paths = _trusted(self.roots[0], list(_files(self.roots[0])))
        return [(path, record) for path in paths for record in self._read_cached(path)]

    def _read_cached(self, path: Path) -> list[Record]:
        try:
            status = path.stat()
        except OSError:  # replaced or removed since the folder was listed
            return []
        # The inode tells a replaced file within one tick of the file system's clock.
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        cached = self._cache.get(path)
        if cached is None or cached[0] != version:
            cached = self._cache[path] = (version, _read_or_warn(path))
        return cached[1]


def _files(root: Path) -> Iterator[Path]:
    """Yields the files with records in a root, in the order of their names."""
    if os.path.isfile(root):
        yield root
    # os.walk leaves out folders that cannot be listed.
    for folder, subfolders, names in os.walk(root):
        subfolders.sort()
        # A file that is being written begins with a dot.
        yield from (
            Path(folder, name)
            for name in sorted(names)
            if name.endswith(".yaml") and not name.startswith(".")
        )


def _trusted(root: Path, paths: list[Path]) -> list[Path]:
    """Returns the files that can be trusted; in roots that somebody has named, these are all."""
    if root != user_root():
        return paths
    trusted, reasons = trust.among(paths, root)
    for reason in reasons:
        warnings.warn(f"results file left out: {reason}", stacklevel=2)
    return trusted


def _read_or_warn(path: Path) -> list[Record]:
    try:
        return read(path)
    except TunefaError as error:
        if os.path.exists(path):
            warnings.warn(f"results file left out: {error}", stacklevel=2)
        return []


def _why_keep(path: Path) -> TunefaError | None:
    """Returns why the file at `path` must not be replaced: its content cannot be read."""
    try:
        if os.path.isfile(path) and os.path.getsize(path) > 0:
            read(path)
    except TunefaError as error:
        return error
    except OSError:  # removed since
        return None
    return None


def _slug(device: str) -> str:
    """Returns the name of a device's folder: `nvidia-h200` for `NVIDIA H200`."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "unnamed"


def _digest(record: Record) -> str:
    """Returns eight hex digits of a hash of config, objective, mode and kernel source."""
    identity = [record.config, record.objective, record.provenance["source_hash"]]
    if record.mode is not None:
        identity.append(record.mode)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
