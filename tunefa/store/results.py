"""Results on disk: small files that are replaced whole, and folders of them that many may write."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tunefa import assets
from tunefa.errors import TunefaError
from tunefa.spec import strict_yaml
from tunefa.store import document
from tunefa.store.record import Record


def user_root() -> Path:
    """The folder of this user's results."""
    return assets.home() / "results"


def shipped_root() -> Path:
    """The folder of the results that tunefa ships."""
    return assets.root("results")


def default_store() -> Store:
    """The user's own results, then those that tunefa ships."""
    return Store([user_root(), shipped_root()])


def read(path: Path) -> list[Record]:
    """The records of one YAML file.

    Raises `TunefaError` with the file, and the line where there is one, for a file that is missing,
    not text, not strict YAML, of a newer schema, or holds a record that does not.
    """
    return document.from_data(strict_yaml.load_file(path), str(path))


def write(path: Path, records: Sequence[Record]) -> None:
    """Replace the file at `path` by one that holds these records, as a whole or not at all.

    Raises `TunefaError` when the folder cannot be written or is full, and when what is at `path`
    cannot be read as results: it may be somebody's work, so it is left as it is.
    """
    if error := _why_keep(path):
        raise TunefaError(f"{error}; not overwritten: move it away first")
    write_text(path, strict_yaml.dump(document.to_data(records)))


def write_text(path: Path, text: str) -> None:
    """Replace the file at `path` by `text` in UTF-8: readers and crashes see the old or the new.

    Raises `TunefaError` when that fails; the old file is intact then and nothing is left beside it.
    """
    target = Path(os.path.realpath(path))  # a link keeps pointing where it does
    if os.path.exists(target) and not os.path.isfile(target):
        raise TunefaError(f"{path} is not a regular file: name a file to write")
    aside = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        _write_through(aside, text.encode("utf-8"))
        os.replace(aside, target)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    _sync_folder(target.parent)


def _write_through(path: Path, data: bytes) -> None:
    """Create `path` and have the disk confirm its content: a rename must not overtake the data."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable; not every file system can, and the data is safe anyway."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _cannot_write(path: Path, error: OSError) -> TunefaError:
    remedies = {
        errno.ENOSPC: "free some space or ",
        errno.EDQUOT: "free some of your quota or ",
        errno.ENOENT: "create the folder or ",
        errno.EACCES: "make the folder writable or ",
        errno.EPERM: "make the folder writable or ",
    }
    return TunefaError(
        f"cannot write {path}: {error.strerror or error}; nothing there was changed: "
        f"{remedies.get(error.errno or 0, '')}choose another place "
        "(TUNEFA_HOME moves the user's store)"
    )


def current(records: Sequence[Record]) -> list[Record]:
    """Those that no later one of the same question supersedes, in their order.

    The question is kernel, chip, workload, objective and mode. A search and `verify` race what is
    stored, so the newest knows most; an older one may say a lower time that today's driver or
    compiler does not reach. Nothing races for a prediction: of those made with the same versions,
    the lowest time stands.
    """
    standing: dict[tuple[object, ...], Record] = {}
    for record in records:
        held = standing.setdefault(_question(record), record)
        if record.timestamp > held.timestamp:
            standing[_question(record)] = record
    for record in records:
        held = standing[_question(record)]
        comparable = record.device is None and _versions(record) == _versions(held)
        if comparable and record.median_us < held.median_us:
            standing[_question(record)] = record
    return [record for record in records if standing[_question(record)] is record]


def _question(record: Record) -> tuple[object, ...]:
    """What a record answers."""
    what = (record.workload, record.kernel, record.objective, record.mode)
    return record.arch, record.device, *what


def _versions(record: Record) -> list[object]:
    """What a prediction depends on: the model, the kernel and its compiler."""
    made = record.provenance
    return [record.source_hash, *(made.get(name) for name in ("tunefa", "triton", "compiler"))]


class Store:
    """Records in folders of YAML files, or in single files; of two equals the earlier root wins.

    New records go to the first root. Nothing here locks: each record has a file of its own, which
    is replaced as a whole, so searches that run at the same time cannot lose each other's results.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(Path(root) for root in roots)
        self._cache: dict[Path, tuple[tuple[int, ...], list[Record]]] = {}

    def records(self) -> list[Record]:
        """All records, root by root and in the order of file names.

        Files that did not change since the last call are not read again. A file that cannot be read
        is left out with a warning that names it: one broken file must not hide all the others.
        """
        return [record for path in self._files() for record in self._read_cached(path)]

    def best(self, among: Callable[[Record], bool] = lambda _: True) -> list[Record]:
        """The best current record of each (arch, device, workload), sorted by these three.

        Only those `among` which it is to be.
        """
        best: dict[tuple[str, str, str], Record] = {}
        for record in filter(among, current(self.records())):
            key = (record.arch, record.device or "", str(record.workload))
            if key not in best or record.rank < best[key].rank:
                best[key] = record
        return [best[key] for key in sorted(best)]

    def add(self, record: Record) -> Path:
        """Keep a record in the first root; returns its file.

        Finding the same config again for the same device, workload, mode and kernel source replaces
        that record; everything else gets a file of its own. A file of that name that cannot be read
        (say a newer tunefa's) is left alone and the record is kept beside it.

        Raises `TunefaError` when the folder cannot be written.
        """
        if not self.roots:
            raise TunefaError("this store has no folder to write to")
        folder = self.roots[0] / record.arch / _slug(record.device or record.objective)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_write(folder, error) from error
        stem = f"{record.workload}--{record.kernel}--{_digest(record)}"
        path, copies = folder / f"{stem}.yaml", 1
        while _why_keep(path):
            copies += 1
            path = folder / f"{stem}-{copies}.yaml"
        write(path, [record])
        return path

    def _files(self) -> Iterator[Path]:
        for root in self.roots:
            if os.path.isfile(root):
                yield root
            for folder, subfolders, names in os.walk(root):  # what cannot be listed is passed over
                subfolders.sort()
                # Files that are being written begin with a dot.
                yield from (
                    Path(folder, name)
                    for name in sorted(names)
                    if name.endswith(".yaml") and not name.startswith(".")
                )

    def _read_cached(self, path: Path) -> list[Record]:
        try:
            status = path.stat()
        except OSError:  # replaced or removed since the folder was listed
            return []
        # A replaced file is a new inode, even within one tick of the file system's clock.
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        cached = self._cache.get(path)
        if cached is None or cached[0] != version:
            cached = self._cache[path] = (version, _read_or_warn(path))
        return cached[1]


def _read_or_warn(path: Path) -> list[Record]:
    try:
        return read(path)
    except TunefaError as error:
        if os.path.exists(path):
            warnings.warn(f"results file left out: {error}", stacklevel=2)
        return []


def _why_keep(path: Path) -> TunefaError | None:
    """Why the file at `path` must not be replaced: it has content, but none that can be read."""
    try:
        if os.path.isfile(path) and os.path.getsize(path) > 0:
            read(path)
    except TunefaError as error:
        return error
    except OSError:  # removed since
        return None
    return None


def _slug(device: str) -> str:
    """`NVIDIA H200` as a folder's name, `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "unnamed"


def _digest(record: Record) -> str:
    """Eight hex digits that differ between configs, objectives, modes and kernel sources."""
    identity = [record.config, record.objective, record.provenance["source_hash"]]
    if record.mode is not None:
        identity.append(record.mode)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
