"""A default of a search space: a config to run without a search, and where it was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec.arch import Arch
from tunefa.spec.expr import Expr
from tunefa.spec.strict_yaml import Fields


@dataclass(frozen=True)
class Default:
    """One entry under `defaults` of a space's file, or under `default_changes`."""

    when: Expr
    """The condition on the workload and the chip."""
    config: dict[str, Any]
    """The values of all parameters; of a change, those of some."""
    measured: str | None = None
    """The device on which the config was found to be good, by its whole name; None: on none."""

    def is_known_on(self, arch: Arch) -> bool:
        """Whether the config was found to be good on a device of the arch."""
        return self.measured in [device.name for device in arch.devices]


def first_that_fits(
    defaults: Sequence[Default],
    changes: Sequence[Default],
    env: dict[str, Any],
    refusal: Callable[[dict[str, Any]], str | None],
) -> Default | str:
    """Returns the first of `defaults` that matches and fits, with the first of `changes` that does
    so too; or why there is none.

    `env` has the names that the conditions read; `refusal` returns why a config does not fit.
    """
    why = "no entry under `defaults` matches"
    for default in defaults:
        if not default.when(env):
            continue
        if (refused := refusal(default.config)) is not None:
            why = f"the default is refused: {refused}"
            continue
        for change in changes:
            if change.when(env):
                changed = {**default.config, **change.config}
                if refusal(changed) is None:
                    measured = default.measured and change.measured
                    return replace(default, config=changed, measured=measured)
        return default
    return why


def with_changes(defaults: Sequence[Default], changes: Sequence[Default]) -> list[Default]:
    """Returns the defaults, and the changes of the first of them."""
    first = defaults[0].config if defaults else {}
    made = [replace(each, config={**first, **each.config}) for each in changes]
    return [*defaults, *made]


def read(data: list[Any], path: Path, name: str = "default") -> tuple[Default, ...]:
    """Returns the entries under `defaults`, or `default_changes`, of the file at `path`.

    Errors call an entry by `name` and its number.

    Raises TunefaError, with file and line, for an entry that is not valid, and for a device in
    `measured` that no arch has.
    """
    defaults = []
    for number, entry in enumerate(data, start=1):
        if not isinstance(entry, Mapping):
            raise TunefaError(f"{path}: {name} {number} must be a mapping, not {entry!r}")
        fields = Fields(entry, str(path))
        where = f"{fields.at('when' if 'when' in entry else 'config')}: {name} {number}"
        when = Expr(str(fields.take("when", (str, bool), True)), where)
        config = dict(fields.take("config", dict))
        measured = fields.take("measured", (str, type(None)), None)
        if measured is not None:
            _check_device(measured, fields.at("measured"))
        defaults.append(Default(when, config, measured))
        fields.done()
    return tuple(defaults)


def _check_device(name: str, where: str) -> None:
    """Raises TunefaError unless `name` is the whole name of a device: those of records are."""
    try:
        found = archs.find(name)[1].name
    except TunefaError as error:
        raise TunefaError(f"{where}: 'measured': {error}") from None
    if found != name:
        raise TunefaError(f"{where}: 'measured' must be the device's whole name: {found}")
