"""The signs of life of a slice, which its worker gives while it searches."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from tunefa.errors import TunefaError
from tunefa.search.request import Progress
from tunefa.sweep.slices import BEAT_S, Slice
from tunefa.sweep.study import SweepStudy


class Beat:
    """Tells the study every few seconds that a slice goes on, and how far it is. A context
    manager, and a listener to the search's progress."""

    def __init__(self, study: SweepStudy, claimed: Slice) -> None:
        self._study, self._claimed = study, claimed
        self._last: dict[str, Any] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Beat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def note(self, earlier: int) -> None:
        """Says how many trials the slice begins with."""
        self._last = {"done": earlier}

    def __call__(self, progress: Progress) -> None:
        """Takes the progress of the search."""
        best = None if progress.best is None else progress.best.median_us
        self._last = {"done": progress.done, "stage": progress.stage, "best_us": best}

    def _run(self) -> None:
        while not self._ended.wait(BEAT_S):
            with contextlib.suppress(TunefaError):  # the search's own writing says what is wrong
                self._study.say(self._claimed, "beat", {"at": time.time(), **self._last})
