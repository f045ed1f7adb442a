"""Landscapes for tests: trials of tunefa's own kernel, made up, in a compressed journal."""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.fake_objective import KERNEL, SM90, WORKLOAD
from tests.support.sample_journals import written
from tunefa.spec.trial import Config, Resources, Trial

CONFIGS = KERNEL.space.feasible(WORKLOAD, SM90).configs


def trial(config: Config, *samples_us: float) -> Trial:
    """One that is right and took these times."""
    resources = Resources(1024, 64, 0, 0)
    return Trial(config, "ok", "", resources, 50.0, samples_us, error=1e-3, compile_s=1.0)


def raced(screened: Trial, *samples_us: float) -> Trial:
    """The same after a race."""
    return replace(screened, samples_us=samples_us)


def compressed(trials: Sequence[Trial], path: Path, **header: Any) -> Path:
    """A landscape of WORKLOAD on an H200, at `path`."""
    said = {"kernel": KERNEL.name, "workload": str(WORKLOAD), **header}
    journal = written("20260131T120000", *trials, **said)
    path.write_bytes(lzma.compress(journal.read_bytes()))
    journal.unlink()
    return path
