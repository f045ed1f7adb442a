"""The file that `tunefa bundle` writes: launch plans, their compiled kernels and their records.

It is a zip archive whose members are not compressed, so that processes can map it and share its
memory. `manifest.json` has the plans and the parameters of the binaries; `binaries/` has one cubin
for each, whose name is its SHA-256; `records.yaml` has the records, for people and `tunefa import`.
The archive's comment, which is the end of the file, has the SHA-256 of all bytes before it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import mmap
import os
import re
import stat
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec.workload import Workload
from tunefa.store import document, whole_file
from tunefa.store.lookup import How
from tunefa.store.record import Record

SCHEMA = 1
"""The version of the file. It changes when older readers would misread it."""
SUFFIX = ".tunefa"
_MANIFEST, _RECORDS = "manifest.json", "records.yaml"
_COMMENT = "tunefa bundle, sha256 {}"
_COMMENT_BYTES = len(_COMMENT.format("0" * 64))
_MAGIC = b"PK\x03\x04"
"""The first bytes of a zip archive."""
_DATE = (1980, 1, 1, 0, 0, 0)
"""The date of all members, the earliest that a zip archive can hold: equal contents are equal
files."""


@dataclass(frozen=True)
class Plan:
    """The launch plan of one workload on one chip."""

    arch: str
    device: str
    workload: Workload
    kernel: str
    config: dict[str, Any]
    """The config for just this workload on just this device."""
    base: dict[str, Any]
    """The config for other lengths and devices, before the kernel's host side sets parameters."""
    how: How
    why: str
    is_final: bool
    """Whether the host side sets no parameters in `base`."""
    beside: str = ""
    """The workload of which it serves lengths that the workload's own config does not; "" for a
    workload that was asked for."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data."""
        return {**asdict(self), "workload": str(self.workload)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Returns the plan that `to_dict` wrote. Raises TunefaError for a workload that is none."""
        return cls(**{**data, "workload": Workload.parse(data["workload"])})


@dataclass(frozen=True)
class Contents:
    """The contents of a bundle, without the binaries."""

    plans: Sequence[Plan]
    records: Sequence[Record]
    """The records that the plans were chosen from."""
    kernels: Mapping[str, Mapping[str, Any]]
    """By kernel: `language`, `source_hash` and the versions of its compilers."""
    binaries: Mapping[str, Mapping[str, Any]]
    """By the digest of all inputs of the compiler: what its language stored, see
    `tunefa.compile.stored`. The values of "image" are names of members."""
    provenance: Mapping[str, Any]
    """The tunefa that made it, and the licence of what is in it if one was given."""
    left_out: Sequence[Mapping[str, str]] = ()
    """The items that were asked for and are not in it: `what`, and `why`."""


def write(path: Path, contents: Contents, images: Mapping[str, bytes]) -> int:
    """Writes a bundle, in one step; returns its size in bytes. `images` are the members by name.

    Raises TunefaError if it cannot be written, or if the file there is no bundle: then it stays.
    """
    check_place(path)
    manifest = {
        "tunefa_bundle": SCHEMA,
        "provenance": dict(contents.provenance),
        "kernels": dict(contents.kernels),
        "plans": [each.to_dict() for each in contents.plans],
        "binaries": dict(contents.binaries),
        "left_out": [*contents.left_out],
    }
    members = {
        _MANIFEST: json.dumps(manifest, indent=1).encode(),
        _RECORDS: document.to_text(contents.records).encode(),
        **{name: images[name] for name in sorted(images)},
    }
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), data)
        archive.comment = _COMMENT.format("0" * 64).encode()
    body = memory.getvalue()[:-_COMMENT_BYTES]
    whole = body + _COMMENT.format(hashlib.sha256(body).hexdigest()).encode()
    whole_file.write(path, whole)
    return len(whole)


def check_place(path: Path) -> None:
    """Raises TunefaError if a bundle must not be written to `path`: its name is not a bundle's, or
    the file there is none."""
    if path.suffix != SUFFIX:
        raise TunefaError(f"the name {str(path)!r} is not that of a bundle: end it in {SUFFIX}")
    with contextlib.suppress(OSError), open(path, "rb", opener=_without_waiting) as file:
        if file.read(len(_MAGIC)) not in (b"", _MAGIC):
            raise TunefaError(f"{path} is no bundle; not overwritten: move it away first")


def name_of(image: bytes) -> str:
    """The name of the member that holds a binary."""
    return f"binaries/{hashlib.sha256(image).hexdigest()}.cubin"


def is_one(path: Path) -> bool:
    """Whether a file is a bundle, and not a YAML document, by its first bytes or its name."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            return file.read(len(_MAGIC)) == _MAGIC or path.suffix == SUFFIX
    except OSError:
        return path.suffix == SUFFIX


class BundleFile:
    """A bundle that was read. The file is mapped, and a binary is read when it is needed."""

    def __init__(self, path: Path) -> None:
        """Reads a bundle. Raises TunefaError, with the path, if it cannot be read, is damaged, or
        was written by a newer tunefa."""
        self.path = path
        mapped: Any = _mapped(path)
        self.digest = _checked(path, mapped)
        """The SHA-256 of the file: equal for equal bundles."""
        try:
            self._archive = zipfile.ZipFile(mapped)
            manifest: Any = json.loads(self._archive.read(_MANIFEST))
            schema = manifest["tunefa_bundle"]
        except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
            raise self._unreadable(error) from error
        if schema != SCHEMA:
            raise TunefaError(
                f"{path} is a bundle of version {schema}, and this tunefa reads version {SCHEMA}: "
                f"make it again with 'tunefa bundle' of this version"
            )
        try:
            self.plans = [Plan.from_dict(each) for each in manifest["plans"]]
            self.kernels: dict[str, dict[str, Any]] = manifest["kernels"]
            self.binaries: dict[str, dict[str, Any]] = manifest["binaries"]
            self.provenance: dict[str, Any] = manifest["provenance"]
            self.left_out: list[dict[str, str]] = manifest["left_out"]
        except (KeyError, TypeError, TunefaError) as error:
            raise self._unreadable(error) from error

    @property
    def records(self) -> list[Record]:
        """The records that the plans were chosen from. Raises TunefaError for one that is none."""
        text = self._archive.read(_RECORDS).decode()
        return document.from_text(text, f"{self.path}/{_RECORDS}")

    @property
    def chips(self) -> dict[str, str]:
        """The archs and devices of its plans, as `NVIDIA H200 (sm90)`, by arch."""
        devices: dict[str, dict[str, None]] = {}
        for plan in self.plans:
            devices.setdefault(plan.arch, {})[plan.device] = None
        return {arch: f"{', '.join(names)} ({arch})" for arch, names in devices.items()}

    def image(self, name: str) -> bytes:
        """The binary with that name. Raises TunefaError if the file was changed since it was
        read."""
        try:
            found: bytes = self._archive.read(name)
        except (KeyError, zipfile.BadZipFile) as error:
            raise self._unreadable(error) from error
        if name_of(found) != name:
            raise TunefaError(f"{self.path} was changed while this process used it: copy it anew")
        return found

    def _unreadable(self, error: Exception) -> TunefaError:
        return TunefaError(
            f"{self.path} is no bundle that this tunefa can read ({error}): make it again with "
            "'tunefa bundle'"
        )


class _Mapped(mmap.mmap):
    """A mapped file, as `zipfile` takes it (`mmap` has this method from Python 3.13 on)."""

    def seekable(self) -> bool:
        """Whether it has positions."""
        return True


def _mapped(path: Path) -> _Mapped:
    """The file, mapped for reading. Raises TunefaError if that fails."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TunefaError(f"{path} is not a regular file: name a bundle")
            if not os.fstat(file.fileno()).st_size:
                raise TunefaError(f"{path} is empty: make it again with 'tunefa bundle'")
            return _Mapped(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise TunefaError(f"cannot read {path}: {error.strerror or error}") from error


def _checked(path: Path, mapped: _Mapped) -> str:
    """Returns the checksum of a file. Raises TunefaError if the file does not end with it."""
    end = len(mapped) - _COMMENT_BYTES
    said = re.fullmatch(rb"tunefa bundle, sha256 ([0-9a-f]{64})", mapped[max(end, 0) :])
    if said is None:
        raise TunefaError(
            f"{path} is not a bundle of tunefa, or was cut short: its end has no checksum; copy it "
            "again, or make it with 'tunefa bundle'"
        )
    with memoryview(mapped)[:end] as body:
        digest = hashlib.sha256(body).hexdigest()
    if digest != said[1].decode():
        raise TunefaError(
            f"{path} is damaged: its checksum is not that of its content; copy it again, or make "
            "it again with 'tunefa bundle'"
        )
    return digest


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file; a pipe without a writer is opened too, at once."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
