"""Every chip that tunefa has a file for, by its own name or by what the driver calls it.

To add a chip is to add `archs/<name>.yaml`: every number in it says where it comes from.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from tunefa.errors import TunefaError, unknown
from tunefa.spec import arch_file
from tunefa.spec.arch import Arch, Device, GpuArch, NpuArch, matches

_FOLDER = Path(__file__).parent / "archs"


def names(vendor: str | None = None) -> list[str]:
    """Every arch there is a file for, or those of one vendor, oldest first."""
    every = sorted(
        (path.stem for path in _FOLDER.glob("*.yaml")), key=lambda name: (len(name), name)
    )
    return every if vendor is None else [name for name in every if _load(name).vendor == vendor]


def load(name: str) -> Arch:
    """The arch called `name`, which is "sm90" or a device of it, such as "h200".

    Raises TunefaError for a name that is neither.
    """
    found = _find(name)
    if found is None:
        raise unknown("arch", name, names())
    return found[0]


def find(name: str) -> tuple[Arch, Device]:
    """The arch and device that `name` means: an arch (its default device), a short name such as
    "h200" or "rtx 4090", or what `torch.cuda.get_device_name` says.

    Raises TunefaError for a name that means none.
    """
    found = _find(name)
    if found is None:
        devices = [device.match[0] for each in names() for device in _load(each).devices]
        raise unknown("arch or device", name, [*names(), *devices])
    return found


def gpu(arch: Arch) -> GpuArch:
    """`arch` as what has SMs and warps. Raises TunefaError where it has none."""
    if isinstance(arch, GpuArch):
        return arch
    raise TunefaError(f"{arch.name} has no SMs, and the model of time knows only chips that do")


def npu(arch: Arch) -> NpuArch:
    """`arch` as what has cubes and UBs. Raises TunefaError where it has none."""
    if isinstance(arch, NpuArch):
        return arch
    raise TunefaError(f"{arch.name} is no NPU: name one of {', '.join(names('huawei'))}")


def read(path: Path) -> Arch:
    """The arch in the file at `path`.

    Raises TunefaError, with file and line, for a number without a source, a source that is not
    there or not used, a number that is not positive, a missing or unknown key.
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


@functools.cache  # of frozen values from files that do not change while tunefa runs
def _load(name: str) -> Arch:
    return read(_FOLDER / f"{name}.yaml")


def _find(name: str) -> tuple[Arch, Device] | None:
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
