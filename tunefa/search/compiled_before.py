"""Configs that need no compiler any more, as a search of the same sweep has compiled their binary.

Workloads of other lengths often need the same binaries, and only the host side of a kernel reads
some parameters. Where compilers are slower than the GPU, such configs cost it nothing but their
trial.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from tunefa.compile import languages
from tunefa.costmodel.before_compiling import order_parameters
from tunefa.search.config_table import Positions, rows
from tunefa.spec.target import Case
from tunefa.spec.trial import Config

_LENGTHS = ("batch", "seqlen_q", "seqlen_k")
"""The fields of a workload on which binaries mostly do not depend."""
_LOOKED_AT = 8
"""The configs of which each parameter is changed, to see whether the compiler sees it."""


class CompiledBefore:
    """The configs that the searches of a worker have compiled."""

    def __init__(self) -> None:
        self._compiled: dict[Hashable, dict[bytes, None]] = {}

    def of(self, case: Case, sees: Sequence[bool] | None = None) -> Binaries:
        """Returns the binaries that fit a case, also those that will be added. `sees` is what
        `compiler_sees` returns; without it, only what orders tiles is taken to be unseen."""
        if sees is None:
            ordering = order_parameters(case.kernel.space)
            sees = [p.name not in ordering for p in case.kernel.space.parameters]
        fields = tuple((k, v) for k, v in asdict(case.workload).items() if k not in _LENGTHS)
        kind = case.kernel.name, case.arch.name, fields
        return Binaries(self._compiled.setdefault(kind, {}), np.array(sees, bool))


class Binaries:
    """The binaries of one kernel that there are. A config is taken to have one if another one with
    the same parameters had, on a workload that differs in its lengths alone. A wrong answer costs
    nothing but time: the compiler is asked about each config."""

    def __init__(self, compiled: dict[bytes, None], sees: NDArray[np.bool_]) -> None:
        """`compiled` has the positions of configs as its keys, in the order in which they were
        added; others may add to it. `sees` says of each parameter whether the compiler sees it."""
        self._compiled, self._sees = compiled, sees
        self._rows: set[bytes] = set()
        self._read = 0

    def add(self, positions: Positions) -> None:
        """Says that a config, by the positions of its parameters' values, was compiled."""
        self._compiled.setdefault(positions.tobytes())

    def are_there(self, positions: Positions) -> NDArray[np.bool_]:
        """Says of each of these configs, (configs, parameters), whether it has a binary."""
        new = list(self._compiled)[self._read :]  # in one step, as other threads add to it
        self._rows.update(np.frombuffer(each, np.int16)[self._sees].tobytes() for each in new)
        self._read += len(new)
        found = (row in self._rows for row in rows(positions[:, self._sees]))
        return np.fromiter(found, bool, len(positions))


def compiler_sees(case: Case, configs: Sequence[Config]) -> list[bool]:
    """Returns of each parameter of a kernel whether the compiler sees it, or only the host side.

    It may raise anything, as code from kernels/ may.
    """
    key = languages.load(case.kernel.language).binary_key
    places = random.Random(0).sample(range(len(configs)), min(_LOOKED_AT, len(configs)))
    aligned, some = case.workload.is_aligned, [configs[place] for place in places]
    keys = [key(case, config, aligned) for config in some]
    return [
        any(
            key(case, {**config, parameter.name: value}, aligned) != own
            for config, own in zip(some, keys, strict=True)
            for value in parameter.values
        )
        for parameter in case.kernel.space.parameters
    ]
