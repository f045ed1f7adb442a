"""`tunefa doctor`: shows what tunefa finds on this machine, and what is wrong."""

from __future__ import annotations

import os
import platform
import warnings
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from tunefa._version import __version__
from tunefa.cli import files, targets
from tunefa.cli.reports import compared, next_steps, text
from tunefa.cli.reports import doctor as reports
from tunefa.cli.reports import records as record_reports
from tunefa.cli.workload_options import Selection, chip_options
from tunefa.compile import provenance, serving
from tunefa.compile.ascend import toolchain
from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import SeenDevice
from tunefa.compile.serving import Installed
from tunefa.errors import TunefaError
from tunefa.runtime import config_hash
from tunefa.runtime.lock_file import VARIABLE, LockFile, measured_on
from tunefa.spec import kernel as kernels
from tunefa.spec.arch import GpuArch
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Target
from tunefa.store import journal
from tunefa.store import results as store
from tunefa.store.bundle_file import BundleFile
from tunefa.store.record import Record

_FEATURES = ("tma", "wgmma", "fp8")


@click.command()
@chip_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(selection: Selection, as_json: bool) -> None:
    """Show what tunefa finds on this machine, and what is wrong.

    It shows the versions of compilers, the devices and their features, the folders of results and
    journals (a journal holds all trials of a search), and how many records serve this device, or
    the one that is named. A record is confirmed if it was measured with these compilers and kernel
    sources; it is unconfirmed if the compilers were others. The report also says which workloads
    the lock file of TUNEFA_FROZEN serves.

    Needs no GPU.
    """
    files.require_current_folder()
    target = selection.target
    versions, problems = _versions()
    library = _library() if versions["nvrtc"] else None
    installed = Installed()
    best, broken = _records(installed)
    counts, doubtful = _serving(best, target, installed)
    frozen, not_served = _frozen(target, installed)
    places, closed = _places()
    report = {
        "versions": versions,
        "nvrtc_path": library,
        "ascend": toolchain.state(),
        "devices": [_device(each) for each in targets.seen()],
        "no_device_because": _why_no_device(),
        "target": _chip(target) | {"present": selection.present},
        "compared_with": compared.to_data(target.arch),
        "places": places,
        "records": counts,
        "frozen": frozen,
        "config_hash": _config_hash(installed),
        "problems": [*problems, *closed, *broken, *not_served],
    }
    if as_json:
        text.emit_json(report)
        return
    out = text.console()
    reports.show(report, out)
    if renewable := next_steps.renewable(doubtful):
        text.print_command(out, *record_reports.remedy(renewable))
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
            kernel.check()
            if kernel.space.vendor == "nvidia":  # the compiler for NPUs is reported by itself
                used.setdefault(kernel.name if kernel.is_library else kernel.language, kernel)
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
        if made["compiler"] is None:  # a library that is not installed
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


def _places() -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The folders of results and journals, and whether they can be written; a sentence for each
    that a search cannot write."""
    folders = {
        "results": store.user_root(),
        "shipped results": store.shipped_root(),
        "journals": journal.folder(),
    }
    found = {
        name: {"path": str(path), "exists": path.is_dir(), "writable": _is_writable(path)}
        for name, path in folders.items()
    }
    closed = [
        f"no search can run, as the folder of {name}, {found[name]['path']}, cannot be written: "
        "name another folder in TUNEFA_HOME"
        for name in ("results", "journals")
        if not found[name]["writable"]
    ]
    return found, closed


def _is_writable(path: Path) -> bool:
    """Whether files can be made in a folder; if it does not exist, whether it can be made."""
    there = next(each for each in (path, *path.parents) if each.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _records(installed: Installed) -> tuple[list[Record], list[str]]:
    """The best records, see `tunefa.compile.serving.best`, and a sentence for each file that cannot
    be read."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        best = serving.best(store.default_store(), installed)
    return best, list(dict.fromkeys(str(each.message) for each in caught))


def _serving(
    best: list[Record], target: Target, installed: Installed
) -> tuple[dict[str, Any], list[Record]]:
    """Counts the records, and those that the runtime may use on the device.

    Returns the counts, and the records of the arch that are refused, or unconfirmed on the device.
    """
    of_arch = [record for record in best if record.arch == target.arch.name]
    states = {id(record): installed.serving(record).state for record in of_arch}
    usable = [record for record in of_arch if states[id(record)] != "refused"]
    here = measured_on(usable, target)
    refused = [record for record in of_arch if states[id(record)] == "refused"]
    unconfirmed = [record for record in here if states[id(record)] == "unconfirmed"]
    predicted = sum(record.device is None for record in usable)
    doubtful = [*unconfirmed, *refused]
    counts = {
        "total": len(best),
        "serving": len(usable),
        "measured_on_it": len(here),
        "confirmed": len(here) - len(unconfirmed),
        "unconfirmed": len(unconfirmed),
        "measured_on_others": len(usable) - len(here) - predicted,
        "predicted": predicted,
        "refused": len(refused),
        "not_confirmed_because": record_reports.reasons(doubtful, installed),
    }
    return counts, doubtful


def _config_hash(installed: Installed) -> str | None:
    """The hash that a process would have which loads no file, see `tunefa.config_hash`; None where
    the lock file cannot be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are problems that the report names
        try:
            lock = LockFile.of_environment()
            records = [] if lock is not None else store.default_store().records()
            return config_hash.digest(config_hash.parts(lock, [], records, installed))
        except TunefaError:
            return None


def _of_bundle(file: BundleFile, target: Target, served: list[str]) -> list[str]:
    """Adds the workloads that a bundle serves on the device to `served`; returns its problems."""
    from tunefa.runtime.bundles import Bundles  # it imports torch

    try:
        Bundles().add(file)
    except TunefaError as error:
        return [str(error)]
    here = [plan for plan in file.plans if plan.device == target.device.name]
    served += [str(plan.workload) for plan in here if not plan.beside]
    return []


def _frozen(target: Target, installed: Installed) -> tuple[dict[str, Any] | None, list[str]]:
    """The report on TUNEFA_FROZEN's lock file for the device, None without one; its problems."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None, []
    served: list[str] = []
    unconfirmed: list[str] = []
    refused: dict[str, str] = {}
    report = {"path": path, "device": target.device.name, "records": 0, "workloads": served}
    report |= {"unconfirmed": unconfirmed, "refused": refused}
    try:
        lock = LockFile.read(Path(path))
    except TunefaError as error:
        return report, [f"{VARIABLE}: {error}"]
    if lock.bundle is not None:
        return report | {"records": len(lock.bundle.records)}, _of_bundle(
            lock.bundle, target, served
        )
    for workload in dict.fromkeys(record.workload for record in measured_on(lock.records, target)):
        try:
            _, remark = lock.kernel(lock.exact(workload, target), target, installed)
            served.append(str(workload))
            unconfirmed += [str(workload)] if remark else []
        except TunefaError as error:
            refused[str(workload)] = str(error)
    first = list(refused.values())[:1]  # the others are similar
    return report | {"records": len(lock.records)}, first
