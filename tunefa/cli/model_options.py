"""`--model`: the layers of a model that the other options leave, and lines about those left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import click

from tunefa.errors import TunefaError
from tunefa.spec import model_preset
from tunefa.spec.model_layers import LayerKind, Model


def loaded(name: str, fields: Mapping[str, Any], flag: Callable[[str], str]) -> Model:
    """Returns the model that `name` means, with the kinds of layers that have the given fields.

    Each kind that tunefa cannot express is named on standard error. `flag` says the option of a
    field. Raises TunefaError for an unknown model and where no kind is left, and click.UsageError
    for a field that contradicts the model.
    """
    model = model_preset.load(name).of_op(str(fields.get("op", "fwd")))
    if model.note is not None:
        click.echo(f"Note: {model.note}.", err=True)
    left_out = [f"{model.share(part)}: {part.why}" for part in model.left_out]
    if not model.kinds:
        raise TunefaError(
            f"tunefa cannot express the attention of {name}, {'; '.join(left_out)}: name another "
            "model, or give the workload of its shape"
        )
    for line in left_out:
        click.echo(f"{model.name}: left out, {line}", err=True)
    return replace(model, kinds=_agreeing(model, fields, flag))


def _agreeing(
    model: Model, fields: Mapping[str, Any], flag: Callable[[str], str]
) -> tuple[LayerKind, ...]:
    """Returns the kinds of layers that have the given fields, of those that the model determines.

    The mask stays free: `--full` is for a model's shape without its mask.
    """
    fixed = {name for kind in model.kinds for name in kind.fields} - {"causal"}
    kinds = model.kinds
    for name in fixed & fields.keys():
        kinds = tuple(kind for kind in kinds if kind.fields.get(name) == fields[name])
        if not kinds:
            has = sorted({str(_shown(name, kind.fields.get(name))) for kind in model.kinds})
            raise click.UsageError(
                f"--model {model.name} has {name.removesuffix('_left')} {' or '.join(has)}: leave "
                f"out {flag(name)}, or --model"
            )
    return kinds


def _shown(name: str, value: Any) -> Any:
    """Returns a field's value as its option counts it; "none" for no window."""
    if name == "window_left":
        return "none" if value is None else value + 1
    return value
