"""The waits of a search that has the GPU, for a compiler: it times its best configs again, lends
the GPU to others, or leaves it to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tunefa.measure.objective import Objective
from tunefa.search.gpu_turns import Turn

PATIENCE_S = 0.5
"""The seconds that a search waits for a compiler before another one may have the GPU; _LOAN_S where
neither it nor others use the GPU meanwhile."""
LENDS_S = 1.5
"""A search with less time left lends the GPU to nobody: it would wait for the end of the other
search's trial, which may take a second. It ends instead, and the rest of its time is for other
kernels, the race and other searches. On two simulated GPUs, searches waited such seconds out in
vain for 4 % of the time, and on an H200 waits of 0.1 s at the end of each kernel were 2 %."""
_LOAN_S = 0.1
"""After so long, a search that lends the GPU looks whether others still use it."""
_WITHOUT_LOAN_S = 0.1
"""One that has too little time to lend waits so long at a time."""
_LEAST_S = 0.001
"""A shorter wait is none: what rounding leaves of a wait may be shorter than a clock can tell."""

Meanwhile = Callable[[float], bool]
"""Uses the GPU for a moment while a search, which has so many seconds left, waits for a compiler,
and no other search would use it. Returns False where it has nothing to do."""


@dataclass(frozen=True)
class CompilerWait:
    """The wait of a search for the compilers of one kernel."""

    evaluator: Objective
    turn: Turn
    meanwhile: Meanwhile | None = None

    def gives_way(self, left_s: float, found_any: bool) -> bool:
        """Waits up to `left_s` seconds for a compiled config. Returns whether the GPU has better to
        do: another search is ready for it, or this kernel, which has `found_any` right config, has
        too little time left to lend it."""
        until = time.monotonic() + left_s
        while not self.evaluator.is_ready(0.0):
            left_s = until - time.monotonic()
            if found_any and 0.0 < left_s < LENDS_S:
                return True
            if self._waited(left_s):
                return False
            if (is_wanted := self.turn.is_wanted) or left_s < _LEAST_S:
                return is_wanted
        return False

    def _waited(self, left_s: float) -> bool:
        """Waits for PATIENCE_S at most. Returns whether a config is compiled."""
        end = time.monotonic() + left_s
        until = min(end, time.monotonic() + PATIENCE_S)
        while (wait_s := until - time.monotonic()) >= _LEAST_S:
            if left_s < LENDS_S:
                if self.evaluator.is_ready(min(wait_s, _WITHOUT_LOAN_S)):
                    return True
            elif self._used(end - time.monotonic()):
                if self.evaluator.is_ready(0.0):
                    return True
            else:
                with self.turn.lent():
                    if self.evaluator.is_ready(min(wait_s, _LOAN_S)):
                        return True
                if self.turn.is_wanted and not self.turn.has_borrowers:
                    break
        return self.evaluator.is_ready(0.0)

    def _used(self, left_s: float) -> bool:
        """Whether the search itself has used the GPU for a moment, as no other would."""
        if self.meanwhile is None or self.turn.has_borrowers:
            return False
        return self.meanwhile(left_s)
