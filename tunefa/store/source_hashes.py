"""Source hashes that stand for the same machine code.

A comment or a name that changes in a kernel's source changes its hash, and not what a GPU runs.
`source_hashes.yaml` says by kernel which past hash compiles to the same instructions as which later
one; `scripts/machine_code.py` compares them and writes it. So a result that was measured with the
past source holds for the later one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from tunefa.spec import strict_yaml

TABLE = Path(__file__).with_suffix(".yaml")


def same_code(kernel: str, source_hash: str) -> str:
    """Returns the newest hash of the same machine code, or `source_hash` where none is newer."""
    later = read().get(kernel, {})
    while source_hash in later:
        source_hash = later[source_hash]
    return source_hash


@functools.cache
def read() -> Mapping[str, Mapping[str, str]]:
    """The table, by kernel; read once."""
    table: Mapping[str, Mapping[str, str]] = strict_yaml.load_file(TABLE) or {}
    return table
