"""The version of tunefa. No other file has it."""

from __future__ import annotations

__version__ = "0.1.0"
