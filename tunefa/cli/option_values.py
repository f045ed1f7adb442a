"""The values of the options for a workload: sizes such as 8k, and names of dtypes."""

from __future__ import annotations

import click

from tunefa.errors import unknown
from tunefa.spec import dtype_names
from tunefa.spec.sizes import parse_size
from tunefa.spec.workload import DTYPES


def size(_ctx: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """Reads the number of an option: `8192` or `8k`. `--window` counts the query's own key, and the
    field `window_left` does not."""
    if value is None:
        return None
    size = parse_size(value, option.opts[0])
    return size - 1 if option.name == "window_left" else size


def dtype(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Reads the name of a dtype, which may be PyTorch's. Raises TunefaError for unknown ones."""
    if value is None:
        return None
    name = dtype_names.canonical(value)
    if name not in DTYPES:
        raise unknown("dtype", value, [*DTYPES, *dtype_names.OTHER_NAMES])
    return name
