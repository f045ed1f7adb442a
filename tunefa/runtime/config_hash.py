"""A hash of everything that decides which config a call runs, for comparing processes.

Processes with equal hashes run equal configs in equal calls on equal devices. The device itself is
not in the hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tunefa._version import __version__
from tunefa.compile import provenance
from tunefa.compile.serving import Installed
from tunefa.costmodel.version import learned_id, model_version
from tunefa.errors import TunefaError
from tunefa.runtime.lock_file import LockFile
from tunefa.spec import kernel as kernels
from tunefa.store.bundle_file import BundleFile
from tunefa.store.record import Record

DIGITS = 16
"""The hexadecimal digits of a hash."""


def parts(
    lock: LockFile | None,
    bundles: Sequence[BundleFile],
    records: Sequence[Record],
    installed: Installed,
) -> dict[str, str]:
    """Returns the parts of the hash by name: equal texts in two processes mean that they agree.

    A process that is frozen to a file has the parts of that file alone.
    """
    if lock is not None and lock.bundle is not None:
        return {"lock file": lock.bundle.digest[:DIGITS]}
    if lock is not None:
        used = {record.kernel for record in lock.records}
        return {"lock file": _of_records(lock.records), **_of_kernels(used)}
    archs = {record.arch for record in records}
    versions = [model_version("predicted", op) for op in ("fwd", "decode")]
    models = {arch: learned_id("predicted", arch) for arch in sorted(archs)}
    return {
        "tunefa": __version__,
        "bundles": digest({"files": " ".join(each.digest for each in bundles)}),
        "records": _of_records(installed.usable(records)),
        "latency model": digest({"model": json.dumps([versions, models])}),
        **_of_kernels(kernels.names()),
    }


def digest(of: Mapping[str, str]) -> str:
    """Returns the hash of these parts."""
    return hashlib.sha256(json.dumps(sorted(of.items())).encode()).hexdigest()[:DIGITS]


def _of_records(records: Sequence[Record]) -> str:
    data: list[Any] = [record.to_dict() for record in records]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:DIGITS]


def _of_kernels(names: Iterable[str]) -> dict[str, str]:
    """The source and the compilers of kernels, by name."""
    found: dict[str, str] = {}
    for name in sorted(names):
        try:
            made = provenance.quick(kernels.load(name))
        except TunefaError as error:
            found[name] = f"cannot be used: {error}"
            continue
        versions = (f"{key} {made[key]}" for key in ("triton", "compiler") if key in made)
        found[name] = ", ".join([f"source {made['source_hash']}", *versions])
    return found
