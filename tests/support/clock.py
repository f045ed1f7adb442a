"""A clock that the test drives: waiting takes no time, and a busy machine changes nothing."""

from __future__ import annotations

import time

import pytest


class Clock:
    """A clock in place of `time.monotonic`; `time.sleep` moves it on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """The time on it, in seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Moves it on; for ever is a bug of the test."""
        assert 0.0 <= seconds < float("inf")
        self.now += seconds

    def drive(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """Puts it in place of this process's clock, until the test ends."""
        monkeypatch.setattr(time, "monotonic", self.monotonic)
        monkeypatch.setattr(time, "sleep", self.sleep)
        return self
