"""What a result was made with: versions and hashes, nothing else about the machine."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

from tunefa._version import __version__
from tunefa.compile import languages
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.store.record import Record


def of(kernel: Kernel) -> dict[str, Any]:
    """Versions of everything that shaped a compiled kernel, its source's hash, the date (UTC)."""
    return {
        "tunefa": __version__,
        **languages.load(kernel.language).versions(),
        "torch": _installed("torch"),
        "driver": _driver(),
        "source_hash": kernel.source_hash,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def quick(kernel: Kernel) -> dict[str, Any]:
    """The part of `of` that takes no compiler to tell, and no import of one.

    The compiler itself comes in Triton's wheel and changes with its version.
    """
    told = getattr(languages.load(kernel.language), "quick_versions", None)
    return {
        **(told() if told else {"triton": _installed("triton")}),
        "driver": _driver(),
        "source_hash": kernel.source_hash,
    }


def drift(record: Record, now: Mapping[str, Any]) -> list[str]:
    """What is not as it was when the record was made, in words; empty if nothing changed.

    `now` is what there is for its kernel, from `of` or `quick`. Only what can change a compiled
    kernel or its time counts: source, Triton, its compiler, the driver (of a measured record).
    """
    keys = ["triton", "compiler", *(["driver"] if record.device else [])]
    then = record.provenance
    changed = [
        f"{key} {then[key]} -> {now[key]}"
        for key in keys
        if then.get(key) is not None and now.get(key) is not None and then[key] != now[key]
    ]
    if record.source_hash != now["source_hash"]:
        changed.insert(0, f"the source of {record.kernel} changed")
    return changed


def drifts(records: Iterable[Record]) -> list[list[str]]:
    """The drift of each record by what is `quick`; a kernel that is gone or broken is one."""
    here = set(kernels.names())

    @functools.cache
    def now(name: str) -> dict[str, Any] | str:
        try:
            return (
                quick(kernels.load(name)) if name in here else f"there is no kernel {name} any more"
            )
        except TunefaError as error:
            return f"{name} cannot be loaded: {error}"

    return [
        [found] if isinstance(found := now(record.kernel), str) else drift(record, found)
        for record in records
    ]


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    """The NVIDIA driver's version, from the file the driver keeps; None without one."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and "." in word), None)
