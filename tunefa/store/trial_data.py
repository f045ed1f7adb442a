"""Trials as plain data in journals. What is read is checked as strictly as a record is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from tunefa.spec.trial import OUTCOMES, MemoryPlan, Resources, Trial

Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | str) or _is_number(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf


def _is_time(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_error(value: Any) -> bool:
    """Whether it is a relative error: NaN and infinity are those of an output with NaN."""
    return type(value) in (int, float) and not value < 0


def _or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _mapping(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


_TRIAL: Mapping[str, tuple[Check, str]] = {
    "config": (_mapping(_is_scalar), "a mapping of parameters to numbers, texts or booleans"),
    "outcome": (lambda value: value in OUTCOMES, f"one of {', '.join(OUTCOMES)}"),
    "reason": (_is_text, "text"),
    "resources": (_or_null(lambda value: isinstance(value, dict)), "a mapping or null"),
    "predicted_us": (_or_null(_is_time), "a positive number or null"),
    "samples_us": (lambda v: isinstance(v, list) and all(map(_is_time, v)), "positive numbers"),
    "error": (_or_null(_is_error), "a number of at least 0 or null"),
    "compile_s": (_or_null(lambda v: _is_number(v) and v >= 0), "a number of at least 0 or null"),
    "predicted_sd": (
        _or_null(lambda v: _is_number(v) and v >= 0),
        "a number of at least 0 or null",
    ),
}
_RESOURCES: Mapping[str, tuple[Check, str]] = {
    each.name: (_or_null(_is_size), "a whole number of at least 0 or null")
    for each in fields(Resources)
    if each.name not in ("planned", "code")
} | {
    "planned": (_or_null(lambda value: isinstance(value, dict)), "a mapping or null"),
    "code": (_or_null(_is_text), "text or null"),
}
_PLAN: Mapping[str, tuple[Check, str]] = {
    "excess": (_mapping(_is_number), "a mapping of memories to numbers"),
    "changed": (_mapping(lambda v: isinstance(v, bool)), "a mapping of flags to true or false"),
    "code": (_or_null(_is_text), "text or null"),
}


def read(data: Any) -> Trial:
    """Returns the trial that `Trial.to_dict` wrote.

    Raises ValueError, with the field, if one is missing, unknown, or has the wrong type or sign.
    """
    checked = _checked(data, _TRIAL, required=("config", "outcome"))
    if checked.get("resources") is not None:
        checked["resources"] = resources(checked["resources"])
    checked["samples_us"] = tuple(checked.get("samples_us", ()))
    return Trial(**checked)


def resources(data: Any) -> Resources:
    """Returns the resources that `dataclasses.asdict` wrote. Raises ValueError as `read` does."""
    parts = _checked(data, _RESOURCES)
    if parts.get("planned") is not None:
        plan = _checked(parts["planned"], _PLAN)
        code = plan.pop("code", None)  # where journals had it when only NPUs did
        parts = {"code": code, **parts, "planned": MemoryPlan(**plan)}
    return Resources(**parts)


def _checked(
    data: Any, known: Mapping[str, tuple[Check, str]], required: tuple[str, ...] = ()
) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"it is not a mapping: {data!r:.60}")
    for name in required:
        if name not in data:
            raise ValueError(f"{name} is missing")
    for name, value in data.items():
        if name not in known:
            raise ValueError(f"{name!r:.60} is not a field of it")
        check, what = known[name]
        if not check(value):
            raise ValueError(f"{name} must be {what}, not {value!r:.60}")
    return dict(data)
