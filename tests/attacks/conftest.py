"""Which attacks run when."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the attacks that take minutes, unless `-m` speaks of them."""
    if "attack" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("attack")]
    if long:
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)
