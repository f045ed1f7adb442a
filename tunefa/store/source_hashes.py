"""Source hashes of the same machine code.

A change of a comment or a name changes the hash of a kernel's source, but not its machine code.
`source_hashes.yaml` maps, by kernel, a past hash to a later one with the same machine code, so that
records measured with the past source stay valid. `scripts/machine_code.py` compares the machine
code and writes the file.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from tunefa.spec import strict_yaml

TABLE = Path(__file__).with_suffix(".yaml")


def same_code(kernel: str, source_hash: str) -> str:
    """Returns the newest hash of the same machine code, or `source_hash` if none is newer."""
    later = read().get(kernel, {})
    while source_hash in later:
        source_hash = later[source_hash]
    return source_hash


@functools.cache
def read() -> Mapping[str, Mapping[str, str]]:
    """Returns the table, by kernel. The file is read once."""
    table: Mapping[str, Mapping[str, str]] = strict_yaml.load_file(TABLE) or {}
    return table
