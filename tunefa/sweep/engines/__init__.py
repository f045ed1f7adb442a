"""The engines that start the workers of a sweep. An engine is a module here with a class `Engine`,
found by its file name. It starts workers and says which have ended; all else is in the study.
One that needs a package imports it when it is made; the module's `NEEDS` is what pip installs."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from tunefa.errors import TunefaError, unknown
from tunefa.sweep.engine import Engine, Task
from tunefa.sweep.start import work


def names() -> list[str]:
    """Returns the names of all engines: the modules in this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def create(name: str, task: Task = work, **options: Any) -> Engine:
    """Makes an engine. Raises TunefaError for an unknown name, and if its library is missing."""
    if name not in names():
        raise unknown("engine", name, names())
    module = importlib.import_module(f"{__name__}.{name}")
    try:
        made: Engine = module.Engine(task, **options)
    except ImportError as error:
        raise TunefaError(
            f"the engine {name} needs a package that cannot be imported ({error}): "
            f"pip install '{module.NEEDS}', or leave out --on {name}"
        ) from error
    return made
