"""Reads `search_spaces/<kernel>.yaml`. `space.read` checks what names in expressions mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunefa.errors import TunefaError, unknown
from tunefa.spec import arch_catalog as archs
from tunefa.spec import default, shared_memory, strict_yaml
from tunefa.spec.arch_file import VENDORS
from tunefa.spec.expr import Expr
from tunefa.spec.shared_memory import RegionExprs
from tunefa.spec.strict_yaml import REQUIRED, Fields
from tunefa.spec.tiling import fields_of

SCHEMA = 2
LIBRARY = "library"
"""The language of kernels that call an installed library. Nothing predicts their time, so they have
no tiling; and they may have no parameters, as the library chooses by itself."""
_EXPRESSIONS = ("serves", "define", "resources", "rules")
_NUMBER_OR_TEXT = (str, bool, int, float)
_REGION = re.compile(r"[a-z][a-z0-9_]*")


def read(path: Path) -> dict[str, Any]:
    """Returns the fields of a `Space`; `parameters` is a list of the fields of each `Parameter`.

    Raises TunefaError, with file and line, if a key is missing or unknown, or a value has the wrong
    type.
    """
    fields = Fields(strict_yaml.load_file(path), str(path))
    version = fields.take("schema", int)
    if version != SCHEMA:
        renamed = ": write 'priority' for 'order' and 'tiling' for 'model'"
        advice = renamed if version < SCHEMA else ": upgrade tunefa"
        raise TunefaError(
            f"{fields.at('schema')}: schema {version} is not {SCHEMA}, which is the one this "
            f"tunefa reads{advice}"
        )
    kernel = fields.take("kernel", str)
    if kernel != path.stem:
        raise TunefaError(
            f"{fields.at('kernel')}: the kernel is {kernel}, but the file's name is {path.stem}"
        )
    vendor = _vendor(fields)
    tiled = _tiled(vendor, op := fields.take("op", str), fields.at("op"))
    space = {
        "kernel": kernel,
        "op": op,
        "language": fields.take("language", str),
        "vendor": vendor,
        "priority": _priority(fields),
        "priority_on": _priority_on(fields),
        "parameters": _parameters(fields.take("parameters", dict), path),
        **{name: _expressions(fields.take(name, dict, {}), path) for name in _EXPRESSIONS},
        "shared_memory_exprs": _shared_memory(fields.take("shared_memory", dict, {}), path),
        "tiling_exprs": {},
        **_defaults(fields, path),
        "path": path,
    }
    if space["language"] != LIBRARY:
        space["tiling_exprs"] = _tiling(fields, tiled, path)
        if not space["parameters"]:
            raise TunefaError(f"{fields.at('parameters')}: a space needs at least one parameter")
    values = {each["name"]: each["values"] for each in space["parameters"]}
    space["unaligned"] = _unaligned(fields, values, path)
    _add_layout(space)
    fields.done()
    return space


def _defaults(fields: Fields, path: Path) -> dict[str, Any]:
    changes = fields.take("default_changes", list, [])
    return {
        "defaults": default.read(fields.take("defaults", list), path),
        "default_changes": default.read(changes, path, "default change"),
    }


def _tiled(vendor: str, op: str, where: str) -> Sequence[str]:
    """Returns the fields of the tiling for an op. Raises TunefaError for an unknown op."""
    try:
        return fields_of(vendor, op)
    except TunefaError as error:
        raise TunefaError(f"{where}: {error}") from None


def _priority(fields: Fields) -> Expr:
    """Returns the priority, a number or an expression of one."""
    return Expr(str(fields.take("priority", (int, str), 0)), fields.at("priority"))


def _priority_on(fields: Fields) -> dict[str, int]:
    """Returns the priorities on single archs, by the arch's name."""
    data = dict(fields.take("priority_on", dict, {}))
    for name, priority in data.items():
        if name not in archs.names():
            raise TunefaError(f"{fields.at('priority_on')}: {unknown('arch', name, archs.names())}")
        if type(priority) is not int:
            raise TunefaError(
                f"{fields.at('priority_on')}: the priority on {name} is {priority!r}: give a whole "
                f"number"
            )
    return data


def _vendor(fields: Fields) -> str:
    vendor = str(fields.take("vendor", str, "nvidia"))
    if vendor not in VENDORS:
        raise TunefaError(f"{fields.at('vendor')}: {unknown('vendor', vendor, VENDORS)}")
    return vendor


def _parameters(data: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    """Returns the fields of each `Parameter`, and where it is in the file."""
    parameters = []
    lines = Fields(data, str(path))
    for name in data:
        where = f"{lines.at(name)}: parameter {name}"
        # A plain dict: messages give the parameter's line, which `where` has.
        fields = Fields(dict(lines.take(name, dict)), where)
        values = tuple(fields.take("values", list))
        plain = all(isinstance(value, (bool, int, float, str)) for value in values)
        if not plain or not values or len(set(values)) != len(values):
            raise TunefaError(
                f"{where} needs values, each once, that are numbers or text, not {list(values)}"
            )
        doc, timed_only = fields.take("doc", str), fields.take("timed_only", bool, False)
        parameters.append(
            {"name": name, "values": values, "doc": doc, "timed_only": timed_only, "where": where}
        )
        fields.done()
    return parameters


def _unaligned(
    fields: Fields, values: Mapping[str, tuple[Any, ...]], path: Path
) -> dict[str, Any] | str:
    """Returns the parameter values for unaligned tensors, or the sentence that says why not."""
    data = fields.take("unaligned", (dict, str), {})
    if isinstance(data, str):
        if not data.strip():
            raise TunefaError(f"{fields.at('unaligned')}: 'unaligned' must say why it cannot")
        return data
    lines = Fields(data, str(path))
    for name, value in data.items():
        if name not in values:
            raise TunefaError(f"{lines.at(name)}: {unknown('parameter', name, values)}")
        if not any(value == each and type(value) is type(each) for each in values[name]):
            raise TunefaError(f"{lines.at(name)}: {name}={value!r} is not in the space")
    return dict(data)


def _expressions(data: Mapping[str, Any], path: Path) -> dict[str, Expr]:
    fields = Fields(data, str(path))
    return {name: _expression(fields, name, f"{fields.at(name)}: {name}") for name in data}


def _expression(fields: Fields, name: str, where: str, default: Any = REQUIRED) -> Expr:
    return Expr(str(fields.take(name, _NUMBER_OR_TEXT, default)), where)


def _shared_memory(data: Mapping[str, Any], path: Path) -> tuple[RegionExprs, ...]:
    """The regions in their order, each at the end of the one before if it does not say where."""
    regions = list[RegionExprs]()
    lines = Fields(data, str(path))
    for name in data:
        where = f"{lines.at(name)}: region {name}"
        if not _REGION.fullmatch(name):
            raise TunefaError(f"{where}: the name must be lower-case letters, digits and _")
        fields = Fields(dict(lines.take(name, dict)), where)
        before = regions[-1].end_name if regions else 0
        overlaps, known = fields.take("overlaps", list, []), [each.name for each in regions]
        for other in overlaps:
            if other not in known:
                raise TunefaError(f"{where}: {unknown('earlier region', str(other), known)}")
        regions.append(
            RegionExprs(
                name, where, _expression(fields, "at", f"{where}: at", before),
                _expression(fields, "bytes", f"{where}: bytes"),
                _expression(fields, "slots", f"{where}: slots", 1), tuple(overlaps),
            )
        )  # fmt: skip
        fields.done()
    return tuple(regions)


def _add_layout(space: dict[str, Any]) -> None:
    """Defines the ends of regions behind all else, and the resource that is the largest of them."""
    if not (regions := space["shared_memory_exprs"]):
        return
    define, resources = space["define"], space["resources"]
    if again := resources.get("smem_bytes"):
        raise TunefaError(f"{again.where} is what 'shared_memory' adds up to: remove it here")
    for region in regions:
        if taken := define.get(region.end_name):
            raise TunefaError(
                f"{region.where}: {region.end_name} is defined already ({taken.where})"
            )
        define[region.end_name] = region.end
    space["resources"] = {"smem_bytes": shared_memory.size(regions), **resources}


def _tiling(fields: Fields, known: Sequence[str], path: Path) -> dict[str, Expr]:
    """Returns an expression for each of the `known` fields of the tiling."""
    tiling = _expressions(fields.take("tiling", dict), path)
    for name, expression in tiling.items():
        if name not in known:
            raise TunefaError(f"{expression.where}: {unknown('field', name, known)}")
    if missing := [name for name in known if name not in tiling]:
        raise TunefaError(f"{fields.at('tiling')}: tiling lacks {', '.join(missing)}")
    return tiling
