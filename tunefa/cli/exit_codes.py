"""Exit statuses of the command line beside 0 and those of errors (1 for users' own, 2 for usage)."""

from __future__ import annotations

NOTHING_VALID = 3
"""A search ran and found no config that works, or `verify` found that a record is none any more."""

INTERRUPTED = 130
"""Ctrl-C, as shells have it: 128 + SIGINT."""
