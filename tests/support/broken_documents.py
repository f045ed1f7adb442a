"""Documents of results that are none, and what is said of each."""

from __future__ import annotations

DUPLICATE = "tunefa_schema: 1\nrecords: []\nrecords: []\n"

BROKEN = {
    "duplicate": (DUPLICATE, ":3: key 'records' is already on line 2"),
    "newer": ("tunefa_schema: 3\nrecords: []\n", ":1: was written by a newer tunefa (schema 3,"),
    "not ours": ("colour: red\n", ": not a results document of tunefa"),
    "not yaml": ("tunefa_schema: 1\nrecords: [\n", ":3: "),
    "empty": ("", ": the file is empty"),
    "half a record": ("tunefa_schema: 1\nrecords:\n- kernel: x\n", ":3: record 1: key 'arch' is"),
}
