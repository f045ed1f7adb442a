"""Sweeps without a compiler: the objective of tests.support.fake_objective, in real processes."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.fake_objective import Fake, by_tile
from tunefa.compile.pool import Rank
from tunefa.measure.objective import Raced
from tunefa.search import preparation
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.spec.arch import Arch
from tunefa.spec.space import Feasible, Space
from tunefa.spec.target import Case
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload
from tunefa.store import whole_file
from tunefa.sweep import engines, run, study
from tunefa.sweep.outcome import Outcome
from tunefa.sweep.plan import Plan
from tunefa.sweep.seat import Seat
from tunefa.sweep.start import work

if TYPE_CHECKING:  # the workers' processes import this module
    import pytest

WEIGHTS = {"q1024_h8_kv2_d64": 4.0, "q512_h8_kv2_d64": 2.0, "q256_h8_kv2_d64": 1.0}
KERNEL = "attention_fwd_triton"
PAUSE = "TUNEFA_TEST_PAUSE"
"""The variable that says where a worker stops for a while, and leaves the file `here` in the home:
`race` or `record`."""
PAUSE_S = 20.0
EVERY = 16
"""One config of so many of the kernel's space is there for searches with `few`."""


def begun_defaults(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the cases whose defaults compilers were asked for: they compile nothing."""
    lengths: list[int] = []
    monkeypatch.setattr(
        preparation,
        "begin_defaults",
        lambda cases, compilers: lengths.extend(case.workload.seqlen_q for case in cases),
    )
    return lengths


def plan(**changes: Any) -> Plan:
    """Three workloads, predicted for one chip, of one kernel."""
    weights = {Workload.parse(text): weight for text, weight in WEIGHTS.items()}
    asked: dict[str, Any] = {
        "weights": weights,
        "targets": ("h200",),
        "kernels": (KERNEL,),
        "strategy": "random",
    }
    return Plan(**{**asked, **changes})


def made(place: Path, asked: Plan | None = None) -> study.SweepStudy:
    """A new study in a file of that folder."""
    asked = asked or plan()
    name = study.new_name(asked)
    return study.SweepStudy.made(str(place / f"{name}.log"), asked, name)


class Quick(Fake):
    """20 ms for each trial. Each config that is tried is a line of the file `tried` in the home."""

    judge = staticmethod(by_tile)
    width = 1
    pause_s = 0.02

    def __init__(self, case: Case, *rest: Any) -> None:
        super().__init__(case, *rest)
        self.workload = case.workload

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        with open(Path(os.environ["TUNEFA_HOME"], "tried"), "a") as file:
            file.write(f"{self.workload} {sorted(config.items())}\n")
        super().submit(config, rank)

    def race(self, trials: Any, default: Config | None, until: float = math.inf) -> Raced:
        _pause("race")
        return super().race(trials, default, until)


def fake_work(seat: Seat) -> str | None:
    """The task of a worker process, with the fake objective and few configs to know times of."""
    search._objective = lambda state, case: Quick(case)
    Space.feasible = few  # type: ignore[method-assign]
    whole = whole_file._write_through

    def half(path: Path, data: bytes) -> None:
        if os.environ.get(PAUSE) == "record":
            path.write_bytes(data[: len(data) // 2])
            _pause("record")
        whole(path, data)

    whole_file._write_through = half
    return work(seat)


_ALL = Space.feasible


def few(self: Space, workload: Workload, arch: Arch) -> Feasible:
    """One of EVERY feasible configs, and the default, which a search begins with."""
    found, default = _ALL(self, workload, arch), self.default(workload, arch)
    kept = [config for config in found.configs[::EVERY] if config != default]
    return Feasible((default, *kept), found.refused)


def _pause(stage: str) -> None:
    if os.environ.get(PAUSE) == stage:
        Path(os.environ["TUNEFA_HOME"], "here").touch()
        time.sleep(PAUSE_S)


def swept(held: study.SweepStudy, budget: Budget, workers: int = 4) -> Outcome:
    """Runs a sweep on this machine, with fake objectives."""
    engine = engines.create("local", fake_work, workers=workers)
    return run.sweep(held, engine, budget)


def main(trials: int) -> None:
    """Runs or continues the sweep of this home, and prints what it has saved."""
    held = study.newest(None, "")
    if held is None:
        name = study.new_name(plan())
        held = study.SweepStudy.made(study.address(None, name), plan(), name)
    found = swept(held, Budget(trials=trials))
    records = sum(each.is_begun for each in found.items)
    print(json.dumps({"records": records, "saved": found.saved}))
