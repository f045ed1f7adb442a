"""Checksums of what tunefa writes: they show a file that was cut short or changed since."""

from __future__ import annotations

import hashlib


def of(text: str) -> str:
    """Returns 16 hex digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
