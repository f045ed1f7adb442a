"""Configs as positions in their parameters' lists of values: two bytes for each value.

A kernel has up to 100,000 feasible configs. As many dicts take half a second to pass from one
process to another, in which no other thread of either runs, and 100 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from tunefa.spec.space import Parameter
from tunefa.spec.trial import Config

Positions = NDArray[np.int16]
"""(configs, parameters): where each value is in its parameter's list."""


def rows(positions: Positions) -> list[bytes]:
    """Returns each row of `positions` as a key: equal for equal rows."""
    whole, width = positions.tobytes(), positions.itemsize * positions.shape[1]
    return [whole[width * i : width * (i + 1)] for i in range(len(positions))]


class ConfigTable(Sequence[dict[str, Any]]):
    """A sequence of configs, each of which is made when it is asked for."""

    def __init__(self, parameters: Sequence[Parameter], positions: Positions) -> None:
        """Makes the table of the configs at `positions`, whose columns are those of
        `parameters`."""
        self.parameters, self.positions = tuple(parameters), positions

    @classmethod
    def of(cls, parameters: Sequence[Parameter], configs: Sequence[Config]) -> ConfigTable:
        """Returns a table of these configs.

        Raises KeyError if one of them lacks a parameter, or has a value that is not in its list.
        """
        if isinstance(configs, ConfigTable) and configs.parameters == tuple(parameters):
            return configs
        orders = [(p.name, {value: i for i, value in enumerate(p.values)}) for p in parameters]
        rows = [[order[config[name]] for name, order in orders] for config in configs]
        return cls(parameters, np.array(rows, np.int16).reshape(len(rows), len(orders)))

    def __len__(self) -> int:
        return len(self.positions)

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> ConfigTable: ...
    def __getitem__(self, place: int | slice) -> dict[str, Any] | ConfigTable:
        if isinstance(place, slice):
            return ConfigTable(self.parameters, self.positions[place])
        return self._config(self.positions[place].tolist())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._config, self.positions.tolist())

    def _config(self, row: Sequence[int]) -> dict[str, Any]:
        columns = zip(self.parameters, row, strict=True)
        return {parameter.name: parameter.values[place] for parameter, place in columns}
