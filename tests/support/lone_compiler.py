"""Compiles configs in a process of their own, which tells whether it needed PyTorch for that."""

from __future__ import annotations

import sys

from tunefa.compile import pool
from tunefa.measure import launches
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources


def compiled(names: tuple[str, str, str], config: Config) -> tuple[Resources | None, str, bool]:
    """Returns its resources, why there are none, and whether this process has PyTorch.

    The process also says which shape checks the config, as in a search.
    """
    launches.shape_to_check(Case.from_names(*names), config)
    _, resources, _, reason = pool._compile(names, config)
    return resources, reason, "torch" in sys.modules
