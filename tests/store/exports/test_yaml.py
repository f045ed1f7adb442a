"""tunefa/store/exports/yaml.py: what it writes is read again."""

from __future__ import annotations

import pytest

from tunefa.errors import TunefaError
from tunefa.store import exports


def test_broken_yaml_names_the_line() -> None:
    with pytest.raises(TunefaError, match=r"^best\.yaml:2: "):
        exports.readable("yaml").load("tunefa_schema: 1\nrecords: 5\n", "best.yaml")
