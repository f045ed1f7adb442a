"""A config beside the best config that is known to be good for a workload."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tunefa.costmodel.anchor import Anchor
from tunefa.costmodel.decision import Expected, compared
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources


@dataclass(frozen=True)
class AgainstKnown:
    """The time that a config is expected to take, and the best known config beside it."""

    case: Case
    expected: Expected
    """Its time by the cost model, corrected by what was measured with its kernel."""
    best: Expected | None
    """The best known config; None if nothing is known for such workloads."""

    @classmethod
    def of(
        cls, anchor: Anchor, case: Case, config: Config, resources: Resources | None
    ) -> AgainstKnown:
        """Returns the comparison for a config of one of the anchor's kernels."""
        expected = anchor.expected(case.kernel.name, config, resources)
        return cls(case, expected, anchor.recommended)

    @property
    def is_best(self) -> bool:
        """Whether the config is the best known one."""
        return self.best is not None and self.best.key == self.expected.key

    @property
    def sentence(self) -> str:
        """The comparison in words."""
        if self.best is None:
            return "no config is known to be good for such workloads"
        if self.is_best:
            return f"this is {self.best.source}, the best that is known here"
        found = compared(self.best, self.expected)
        if math.isinf(found.gain):
            return f"it cannot be compared with {self.best.source}"
        gain, error = math.expm1(abs(found.gain)), math.expm1(found.error)
        than = f"{gain:.0%} {'faster' if found.gain > 0 else 'slower'} than {self.best.source}"
        if abs(found.gain) > found.error:
            return f"expected to be {than}, beyond the comparison's error of {error:.0%}"
        return (
            f"expected to be {than}, within the comparison's error of {error:.0%}: the model "
            "cannot tell the two apart"
        )

    def to_data(self) -> dict[str, Any] | None:
        """Plain data for `--json`; None where nothing is known."""
        if self.best is None:
            return None
        found = compared(self.best, self.expected)
        return {
            "kernel": self.best.kernel,
            "config": dict(self.best.config),
            "source": self.best.source,
            "time_us": self.best.time_us,
            "gain": math.expm1(found.gain),
            "error": math.expm1(found.error),
            "sentence": self.sentence,
        }
