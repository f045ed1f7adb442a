"""What a result was made with: versions and hashes, nothing else about the machine."""

from __future__ import annotations

from datetime import datetime, timezone
from importlib import metadata
from typing import Any

from tunefa import languages
from tunefa._version import __version__
from tunefa.kernel import Kernel
from tunefa.record import Record


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


def drift(record: Record, kernel: Kernel) -> list[str]:
    """What is not as it was when the record was made, in words; empty if nothing changed.

    Only what can change a compiled kernel or its time: source, Triton, its compiler, the driver (of
    a measured record).
    """
    now = of(kernel)
    keys = ["triton", "compiler", *(["driver"] if record.device else [])]
    then = record.provenance
    changed = [
        f"{key} was {then[key]}, now {now[key]}"
        for key in keys
        if then.get(key) is not None and now[key] is not None and then[key] != now[key]
    ]
    if then["source_hash"] != now["source_hash"]:
        changed.insert(0, f"the source of {kernel.name} changed")
    return changed


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
