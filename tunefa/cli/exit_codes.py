"""Exit statuses of the command line beside 0, and 1 and 2 of errors."""

from __future__ import annotations

NOTHING_VALID = 3
"""A search ran and found no config that works, or `verify` found a record that no longer holds."""

INTERRUPTED = 130
"""Ctrl-C, as shells have it: 128 + SIGINT."""
