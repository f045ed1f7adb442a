"""Reads `archs/<name>.yaml`: a table of sources, and numbers that each name one of the sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunefa.errors import TunefaError, unknown
from tunefa.spec import strict_yaml
from tunefa.spec.strict_yaml import Fields, Located

_GPU_COUNTS = (
    "registers_per_sm",
    "max_registers_per_thread",
    "register_allocation_unit",
    "register_partitions_per_sm",
    "max_threads_per_sm",
    "max_warps_per_sm",
    "max_blocks_per_sm",
    "max_threads_per_block",
    "smem_per_block_bytes",
    "smem_per_sm_bytes",
    "smem_reserved_per_block_bytes",
    "smem_allocation_unit_bytes",
)
_GPU_RATES = (
    "fp32_fma_per_clock_per_sm",
    "exp2_per_clock_per_sm",
    "smem_bytes_per_clock_per_sm",
    "l2_bytes_per_clock",
)
_NPU_COUNTS = ("ub_bytes", "l1_bytes", "l0a_bytes", "l0b_bytes", "l0c_bytes")
VENDORS = ("nvidia", "huawei")
_DEVICE_COUNTS: dict[str, tuple[str, ...]] = {
    "nvidia": ("sms", "l2_bytes", "memory_bytes"),
    "huawei": ("sms", "vector_cores", "l2_bytes"),
}
_DEVICE_RATES: dict[str, tuple[str, ...]] = {
    "nvidia": ("boost_mhz", "hbm_bytes_per_s", "power_w"),
    "huawei": ("boost_mhz", "hbm_bytes_per_s", "l2_bytes_per_clock"),
}
_DEVICE_OPTIONAL = ("max_mhz", "l2_bytes_per_clock")
_TENSOR = "tensor_flops_per_clock_per_sm"
_SHAPE = "{value: N, source: KEY}, with KEY one of 'sources'"


def read(path: Path) -> dict[str, Any]:
    """Returns the fields of an `Arch`; `devices` is a list of the fields of each `Device`.

    Raises TunefaError, with file and line, if the file breaks a rule of `arch_catalog.read`.
    """
    data = strict_yaml.load_file(path)
    fields = Fields(data, str(path))
    sources = _texts(fields.take("sources", dict), str(path))
    entry = _Entry(data, fields, _Citations(str(path), sources))
    vendor = _vendor(fields)
    arch: dict[str, Any] = {
        "name": _stem(fields, path),
        "vendor": vendor,
        "features": frozenset(_list_of_text(fields, "features")),
        **(_gpu(fields, entry) if vendor == "nvidia" else _npu(entry)),
        _TENSOR: entry.numbers(_TENSOR),
        "devices": [_device(each, vendor, entry.cited) for each in fields.take("devices", list)],
        "sources": sources,
    }
    fields.done()
    if not arch["devices"]:
        raise TunefaError(f"{fields.at('devices')}: no devices: add one, the first is the default")
    entry.cited.done(fields.at("sources"))
    return arch


class _Citations:
    """The sources in one file, and which of them a number has named."""

    def __init__(self, path: str, sources: Mapping[str, str]) -> None:
        self.path = path
        self._sources = sources
        self._used: set[str] = set()

    def use(self, key: str, where: str) -> None:
        if key not in self._sources:
            raise TunefaError(f"{where}: {unknown('source', key, self._sources)}")
        self._used.add(key)

    def done(self, where: str) -> None:
        unused = [key for key in self._sources if key not in self._used]
        if unused:
            raise TunefaError(f"{where}: no number names source {unused[0]!r}: remove it")


class _Entry:
    """A mapping whose numbers are written `{value: N, source: KEY}`."""

    def __init__(self, data: Any, fields: Fields, cited: _Citations) -> None:
        self._data = data
        self._fields = fields
        self.cited = cited

    def number(self, key: str, kind: type) -> Any:
        """Returns the positive int or float under `key`."""
        if key not in self._data:
            lines = self._data.lines.values() if isinstance(self._data, Located) else ()
            where = f"{self.cited.path}:{min(lines)}" if lines else self.cited.path
            raise TunefaError(f"{where}: number {key!r} is missing: add {_SHAPE}")
        entry = self._fields.take(key, (dict, int, float))
        where = self._fields.at(key)
        if not isinstance(entry, dict) or "source" not in entry:
            raise TunefaError(f"{where}: number {key!r} has no source: write it as {_SHAPE}")
        inner = Fields(entry, self.cited.path)
        value = inner.take("value", kind)
        self.cited.use(inner.take("source", str), where)
        inner.done()
        if value <= 0:
            raise TunefaError(f"{where}: number {key!r} must be above 0, not {value}")
        return value

    def numbers(self, key: str) -> dict[str, float]:
        """Returns the mapping of names to numbers under `key`; empty if the key is missing."""
        data = self._fields.take(key, dict, {})
        inner = _Entry(data, Fields(data, self.cited.path), self.cited)
        return {name: inner.number(name, float) for name in data}


def _device(data: Any, vendor: str, cited: _Citations) -> dict[str, Any]:
    """Returns the fields of one `Device`."""
    fields = Fields(data, cited.path)
    entry = _Entry(data, fields, cited)
    device = {
        "name": fields.take("name", str),
        "match": tuple(_list_of_text(fields, "match")),
        "aliases": tuple(_list_of_text(fields, "aliases")) if "aliases" in data else (),
        **{key: entry.number(key, int) for key in _DEVICE_COUNTS[vendor]},
        **{key: entry.number(key, float) for key in _DEVICE_RATES[vendor]},
        **{key: entry.number(key, float) for key in _DEVICE_OPTIONAL if key in data},
        _TENSOR: entry.numbers(_TENSOR),
    }
    fields.done()
    return device


def _vendor(fields: Fields) -> str:
    vendor = str(fields.take("vendor", str))
    if vendor not in VENDORS:
        raise TunefaError(f"{fields.at('vendor')}: {unknown('vendor', vendor, VENDORS)}")
    return vendor


def _gpu(fields: Fields, entry: _Entry) -> dict[str, Any]:
    """Returns the fields that only `GpuArch` has."""
    return {
        "compute_capability": _capability(fields),
        **{key: entry.number(key, int) for key in _GPU_COUNTS},
        **{key: entry.number(key, float) for key in _GPU_RATES},
    }


def _npu(entry: _Entry) -> dict[str, Any]:
    """Returns the fields that only `NpuArch` has."""
    return {key: entry.number(key, int) for key in _NPU_COUNTS}


def _stem(fields: Fields, path: Path) -> str:
    name = str(fields.take("name", str))
    if name != path.stem:
        raise TunefaError(
            f"{fields.at('name')}: name {name!r} is not the file's name {path.stem!r}"
        )
    return name


def _capability(fields: Fields) -> tuple[int, int]:
    text = fields.take("compute_capability", str)
    found = re.fullmatch(r"(\d+)\.(\d)", text)
    if found is None:
        where = fields.at("compute_capability")
        raise TunefaError(f'{where}: compute_capability {text!r} must be like "9.0"')
    return int(found[1]), int(found[2])


def _list_of_text(fields: Fields, key: str) -> list[str]:
    values = fields.take(key, list)
    for value in values:
        if not isinstance(value, str):
            raise TunefaError(f"{fields.at(key)}: {key!r} must be a list of text, not {value!r}")
    if not values:
        raise TunefaError(f"{fields.at(key)}: {key!r} is empty")
    return list(values)


def _texts(data: Mapping[str, Any], path: str) -> dict[str, str]:
    fields = Fields(data, path)
    return {key: fields.take(key, str) for key in data}
