"""Exit statuses of the command line. 0 is success; errors have 1, wrong usage has 2."""

from __future__ import annotations

NOTHING_VALID = 3
"""A search ran and found no config that works, `verify` found a record that no longer holds, or no
record is left for a lock file."""

INTERRUPTED = 130
"""Ctrl-C, with the number that shells use: 128 + SIGINT."""
