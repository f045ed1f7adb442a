"""Finds archs and devices by name, among the files in `archs/`.

To add a chip, add `archs/<name>.yaml`. Every number in it names its source.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from tunefa.errors import TunefaError, unknown
from tunefa.spec import arch_file
from tunefa.spec.arch import Arch, Device, GpuArch, NpuArch, matches

_FOLDER = Path(__file__).parent / "archs"


def names(vendor: str | None = None) -> list[str]:
    """Returns the names of all archs, or of one vendor's archs, the oldest first."""
    every = sorted(
        (path.stem for path in _FOLDER.glob("*.yaml")), key=lambda name: (len(name), name)
    )
    return every if vendor is None else [name for name in every if _load(name).vendor == vendor]


def device_names(arch: str | None = None) -> list[str]:
    """Returns the short names of all devices, or of one arch's devices."""
    every = names() if arch is None else [arch]
    return [device.match[0] for each in every for device in _load(each).devices]


def load(name: str) -> Arch:
    """Returns the arch that `name` identifies: an arch such as "sm90", or a device such as "h200".

    Raises TunefaError if `name` is neither.
    """
    found = _find(name)
    if found is None:
        raise unknown("arch", name, names())
    return found[0]


def find(name: str) -> tuple[Arch, Device]:
    """Returns the arch and device that `name` identifies.

    `name` is that of an arch (then the device is its default), a short name of a device such as
    "h200" or "rtx 4090", or the name that `torch.cuda.get_device_name` returns. Raises TunefaError
    if it is none of these.
    """
    found = _find(name)
    if found is None:
        raise _unknown(name)
    return found


def gpu(arch: Arch) -> GpuArch:
    """Returns `arch` as a GpuArch. Raises TunefaError if it is not a GPU's."""
    if isinstance(arch, GpuArch):
        return arch
    raise TunefaError(f"{arch.name} is not an NVIDIA GPU: name one of {', '.join(names('nvidia'))}")


def npu(arch: Arch) -> NpuArch:
    """Returns `arch` as an NpuArch. Raises TunefaError if it is not an NPU's."""
    if isinstance(arch, NpuArch):
        return arch
    raise TunefaError(f"{arch.name} is not an NPU: name one of {', '.join(names('huawei'))}")


def read(path: Path) -> Arch:
    """Returns the arch in the file at `path`.

    Raises TunefaError, with file and line, if a number has no source or is not positive, if a
    source is missing or unused, or if a key is missing or unknown.
    """
    numbers = arch_file.read(path)
    devices = tuple(
        Device(
            **{
                "l2_bytes_per_clock": numbers.get("l2_bytes_per_clock"),
                **each,
                "tensor_flops_per_clock_per_sm": {
                    **numbers["tensor_flops_per_clock_per_sm"],
                    **each["tensor_flops_per_clock_per_sm"],
                },
            }
        )
        for each in numbers.pop("devices")
    )
    return _KINDS[numbers["vendor"]](**numbers, devices=devices)


_KINDS: Mapping[str, type[Arch]] = {"nvidia": GpuArch, "huawei": NpuArch}


def _unknown(name: str) -> TunefaError:
    """Returns the error for a name that is neither an arch nor a device: the nearest ones, and a
    line for each arch with its devices."""
    known = [*names(), *device_names()]
    nearest = get_close_matches(name.strip().lower(), known, n=2, cutoff=0.7)
    hint = f": did you mean {' or '.join(nearest)}?" if nearest else ": name one of these"
    lines = []
    for each in names():
        devices = ", ".join(device for device in device_names(each) if device != each)
        lines.append(f"  {each:<12} {devices}".rstrip())
    return TunefaError("\n".join([f"unknown arch or device {name!r}{hint}", *lines]))


@functools.cache  # archs are frozen, and their files do not change while tunefa runs
def _load(name: str) -> Arch:
    return read(_FOLDER / f"{name}.yaml")


def _find(name: str) -> tuple[Arch, Device] | None:
    """Returns the arch with this name, or the device with the longest match; None without any.

    Raises TunefaError for a list of names, of which the longest would be taken for all.
    """
    if "," in name:
        raise TunefaError(f"{name!r} is a list of chips, and one name is expected here")
    if (stem := name.strip().lower()) in names():
        arch = _load(stem)
        return arch, arch.device()
    best: tuple[int, Arch, Device] | None = None
    for each in names():
        arch = _load(each)
        for length, device in matches(arch, name):
            if best is None or length > best[0]:
                best = (length, arch, device)
    return best and best[1:]
