"""Provenance: the versions and hashes that a result was made with, and how they changed since."""

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
    """Returns the versions of all that influences a compiled kernel, its source hash, the date."""
    return {
        "tunefa": __version__,
        **languages.load(kernel.language).versions(),
        "torch": _installed("torch"),
        "driver": _driver(),
        "source_hash": kernel.source_hash,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def quick(kernel: Kernel) -> dict[str, Any]:
    """Returns the part of `of` that is known without importing a compiler.

    For Triton it lacks the compiler's version: ptxas is in Triton's wheel, and changes with it.
    """
    told = getattr(languages.load(kernel.language), "quick_versions", None)
    return {
        **(told() if told else {"triton": _installed("triton")}),
        "driver": _driver(),
        "source_hash": kernel.source_hash,
    }


def drift(record: Record, now: Mapping[str, Any]) -> list[str]:
    """Returns what changed since the record was made, as sentences; empty if nothing did.

    `now` is the result of `of` or `quick` for the record's kernel. Only what can change a compiled
    kernel or its time counts: source, Triton, compiler, and for measured records the driver.
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
    """Returns the `drift` of each record; a missing or broken kernel counts as a change."""
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
    """Returns the version of the NVIDIA driver, from its file in /proc; None without a driver."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and "." in word), None)
