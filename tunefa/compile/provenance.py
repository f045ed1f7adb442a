"""Provenance: the versions and hashes that a result was made with, and how they changed since."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

from tunefa._version import __version__
from tunefa.compile import languages
from tunefa.costmodel.version import learned_id, model_version
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.store.record import Record


def of(kernel: Kernel) -> dict[str, Any]:
    """Returns the versions of all that influences a compiled kernel, its source hash, the date."""
    return {
        "tunefa": __version__,
        **_versions(kernel),
        "torch": _installed("torch"),
        "driver": _driver(),
        "source_hash": kernel.source_hash,
        "date": now(),
    }


def now() -> str:
    """Returns the date and time, as `of` has it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def quick(kernel: Kernel) -> dict[str, Any]:
    """Returns the part of `of` that is known without importing a compiler.

    For Triton it lacks the compiler's version: ptxas is in Triton's wheel, and changes with it.
    """
    language = languages.load(kernel.language)
    try:
        quick = getattr(language, "quick_versions", None)
        versions = _versions(kernel) if quick is None else quick()
    except TunefaError:  # there is no compiler
        versions = {"compiler": None}
    return {**versions, "driver": _driver(), "source_hash": kernel.source_hash}


def other_compilers(
    record: Record, now: Mapping[str, Any]
) -> list[tuple[str, str | None, str | None]]:
    """Returns (key, then, now) of each compiler that is not the one that the record was made with.

    A version is None if the record does not say it, or if the compiler is not installed. `now` is
    the result of `of` or `quick` for the record's kernel. Triton's version is enough, as it
    includes its ptxas; other languages name their compiler.
    """
    deciding = "triton" if "triton" in now else "compiler"
    changed = []
    for key in ("triton", "compiler"):
        then, here = record.provenance.get(key), now.get(key)
        is_known = then is not None and here is not None
        if then != here if is_known else key == deciding:
            changed.append((key, then, here))
    return changed


def drift(record: Record, now: Mapping[str, Any]) -> list[str]:
    """Returns what changed since the record was made, as sentences; empty if nothing did.

    `now` is the result of `of` or `quick` for the record's kernel. Only what can change a compiled
    kernel or its time counts: source, Triton, compiler, for measured records the driver, and for
    predicted ones the model of time.
    """
    compilers = [each for each in other_compilers(record, now) if each[2] is not None]
    changed = [f"{key} {then or 'unknown'} -> {here}" for key, then, here in compilers]
    drivers = record.provenance.get("driver"), now.get("driver")
    if record.device and None not in drivers and drivers[0] != drivers[1]:
        changed.append(f"driver {drivers[0]} -> {drivers[1]}")
    model = model_version(record.objective, record.workload.op)
    if model not in (None, record.model_version):
        changed.append(f"model of time {record.model_version or 'without a version'} -> {model}")
    elif record.objective == "predicted":
        then, here = record.model[1], learned_id(record.objective, record.arch)
        if then != here:
            changed.append(f"what the model had learned {then or 'nothing'} -> {here or 'nothing'}")
    if record.source_hash != now["source_hash"]:
        changed.insert(0, f"the source of {record.kernel} changed")
    return changed


def drifts(records: Iterable[Record]) -> list[list[str]]:
    """Returns the `drift` of each record; a missing or broken kernel counts as a change, but not
    that of a user's functions (`Record.functions`), which is no kernel of tunefa."""
    here = set(kernels.names())

    @functools.cache
    def now(name: str) -> dict[str, Any] | str:
        try:
            return (
                quick(kernels.load(name)) if name in here else f"there is no kernel {name} any more"
            )
        except TunefaError as error:
            return f"{name} cannot be loaded: {error}"

    def changes(record: Record) -> list[str]:
        found = {} if record.functions else now(record.kernel)
        return [found] if isinstance(found, str) else drift(record, found) if found else []

    return [changes(record) for record in records]


def _versions(kernel: Kernel) -> dict[str, str | None]:
    """The versions of a kernel's toolchain, or of the library that it calls."""
    language = languages.load(kernel.language)
    found: dict[str, str | None]
    found = language.versions_of(kernel) if kernel.is_library else language.versions()
    return found


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
