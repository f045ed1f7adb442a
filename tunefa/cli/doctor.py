"""`tunefa doctor`: shows what tunefa finds on this machine, and what is wrong."""

from __future__ import annotations

import os
import platform
import warnings
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from tunefa._version import __version__
from tunefa.cli import targets
from tunefa.cli.reports import doctor as reports
from tunefa.cli.reports import records as record_reports
from tunefa.cli.reports import text
from tunefa.cli.workload_options import Selection, chip_options
from tunefa.compile import provenance
from tunefa.compile.ascend import toolchain
from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import SeenDevice
from tunefa.errors import TunefaError
from tunefa.runtime.lock_file import VARIABLE, Installed, LockFile, measured_on
from tunefa.spec import kernel as kernels
from tunefa.spec.arch import GpuArch
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Target
from tunefa.store import journal
from tunefa.store import results as store
from tunefa.store.record import Record

_FEATURES = ("tma", "wgmma", "fp8")


@click.command()
@chip_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(selection: Selection, as_json: bool) -> None:
    """Show what tunefa finds on this machine, and what is wrong.

    It shows the versions of compilers, the devices and their features, the folders of results and
    journals (a journal holds all trials of a search), how many records serve this device (or the
    one that is named), how many of them were made with other compilers or kernel sources, and which
    workloads the lock file of TUNEFA_FROZEN serves.

    Needs no GPU.
    """
    target = selection.target
    versions, problems = _versions()
    library = _library() if versions["nvrtc"] else None
    records, best, broken = _records()
    pairs = zip(best, provenance.drifts(best), strict=True)
    drifted = [record for record, changes in pairs if changes]
    frozen, not_served = _frozen(target, selection.present)
    report = {
        "versions": versions,
        "nvrtc_path": library,
        "ascend": toolchain.state(),
        "devices": [_device(each) for each in targets.seen()],
        "no_device_because": _why_no_device(),
        "target": _chip(target) | {"present": selection.present},
        "places": _places(),
        "records": _serving(records, target) | {"drifted": len(drifted)},
        "frozen": frozen,
        "problems": [*problems, *broken, *not_served],
    }
    if as_json:
        text.emit_json(report)
        return
    out = text.console()
    reports.show(report, out)
    if drifted:
        text.print_command(out, *record_reports.remedy(drifted))
        return
    line = text.command("tunefa", "search", *selection.chip_words, "--seqlen", "8192")
    text.print_command(out, "Next: search, for example", line)


def _versions() -> tuple[dict[str, str | None], list[str]]:
    """The versions by name, None for what is not installed; and what is wrong with them."""
    versions: dict[str, str | None] = {"tunefa": __version__, "python": platform.python_version()}
    for package in ("torch", "triton", "optuna"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    used: dict[str, Kernel] = {}
    problems: dict[str, None] = {}  # two languages may have the same problem
    for name in kernels.names():
        try:
            kernel = kernels.load(name)
            if kernel.space.vendor == "nvidia":  # the compiler for NPUs is reported by itself
                used.setdefault(kernel.language, kernel)
        except TunefaError as error:
            problems[str(error)] = None
    compilers: dict[str, str | None] = {"ptxas": None, "nvrtc": None}
    driver = None
    for kernel in used.values():
        try:
            made = provenance.of(kernel)
        except TunefaError as error:
            problems[str(error)] = None
            continue
        name, _, version = str(made["compiler"]).partition(" ")
        compilers[name], driver = version, made["driver"]
    return {**versions, **compilers, "cuda": _cuda(), "driver": driver}, list(problems)


def _library() -> str | None:
    """The path of NVRTC, if cuda-bindings finds it."""
    from tunefa.compile import nvrtc

    return nvrtc.installed().path or None


def _cuda() -> str | None:
    """The version of CUDA that torch was built with; None for a CPU build."""
    try:
        import torch
    except ImportError:
        return None
    cuda: str | None = torch.version.cuda
    return cuda


def _why_no_device() -> str | None:
    if targets.seen():
        return None
    if not driver.is_there():
        return "this machine has no NVIDIA driver"
    if find_spec("torch") is None:
        return "torch is not installed: pip install torch"
    if _cuda() is None:
        return "the installed torch is a CPU build: install one with CUDA"
    return "torch sees no device: check nvidia-smi and CUDA_VISIBLE_DEVICES"


def _device(seen: SeenDevice) -> dict[str, Any]:
    capability = "{}.{}".format(*seen.compute_capability)
    device = {"name": seen.name, "compute_capability": capability, "sms": seen.sms}
    device |= {"memory_bytes": seen.memory_bytes}
    try:
        return {**device, **_chip(targets.described(seen))}
    except TunefaError as error:
        return {**device, "problem": str(error)}


def _chip(target: Target) -> dict[str, Any]:
    arch = target.arch
    named = _FEATURES if isinstance(arch, GpuArch) else sorted(arch.features)
    features = {each: each in arch.features for each in named}
    return {"arch": arch.name, "device": target.device.name, "features": features}


def _places() -> dict[str, dict[str, Any]]:
    """The folders of results and journals, and whether they can be written."""
    folders = {
        "results": store.user_root(),
        "shipped results": store.shipped_root(),
        "journals": journal.folder(),
    }
    return {
        name: {"path": str(path), "exists": path.is_dir(), "writable": _is_writable(path)}
        for name, path in folders.items()
    }


def _is_writable(path: Path) -> bool:
    """Whether files can be made in a folder; if it does not exist, whether it can be made."""
    there = next(each for each in (path, *path.parents) if each.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _records() -> tuple[list[Record], list[Record], list[str]]:
    """All records, the best ones, and a sentence for each file that cannot be read."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        home = store.default_store()
        records, best = home.records(), home.best()
    return records, best, list(dict.fromkeys(str(each.message) for each in caught))


def _serving(records: list[Record], target: Target) -> dict[str, int]:
    """Counts the records, and those that the runtime may use on the device."""
    of_arch = [record for record in records if record.arch == target.arch.name]
    here = [record for record in of_arch if targets.same(record.device, target.device)]
    predicted = [record for record in of_arch if record.device is None]
    return {
        "total": len(records),
        "serving": len(of_arch),
        "measured_on_it": len(here),
        "measured_on_others": len(of_arch) - len(here) - len(predicted),
        "predicted": len(predicted),
    }


def _frozen(target: Target, present: bool) -> tuple[dict[str, Any] | None, list[str]]:
    """The report on TUNEFA_FROZEN's lock file for the device, None without one; its problems."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None, []
    # The runtime compares exact names of the driver, which only a present device has.
    device = targets.seen()[0].name if present else target.device.name
    there = replace(target, device=replace(target.device, name=device))
    served: list[str] = []
    refused: dict[str, str] = {}
    report = {"path": path, "device": device, "records": 0, "workloads": served}
    report["refused"] = refused
    try:
        lock = LockFile.read(Path(path))
        installed = Installed([kernels.load(name) for name in kernels.names()])
    except TunefaError as error:
        return report, [f"{VARIABLE}: {error}"]
    for workload in dict.fromkeys(record.workload for record in measured_on(lock.records, there)):
        try:
            lock.kernel(lock.exact(workload, there), there.arch, installed)
            served.append(str(workload))
        except TunefaError as error:
            refused[str(workload)] = str(error)
    return report | {"records": len(lock.records)}, list(refused.values())[
        :1
    ]  # the others are similar
