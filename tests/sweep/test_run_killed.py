"""tunefa/sweep/run.py: a sweep that is killed loses nothing that was finished."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.sweeping import PAUSE, WEIGHTS
from tests.support.tree import TREE
from tunefa.spec.trial import identity
from tunefa.store import journal
from tunefa.store import results as store
from tunefa.store.results import Store
from tunefa.sweep import study

TRIALS = 72
KILLS, WORKERS = 5, 2
Key = tuple[str, str, tuple[object, ...]]


def start(home: Path, pause: str = "") -> subprocess.Popen[str]:
    """A process that runs the sweep of this home, or continues it."""
    home.mkdir(exist_ok=True)
    (home / "here").unlink(missing_ok=True)
    environment = {**os.environ, "TUNEFA_HOME": str(home), PAUSE: pause}
    program = f"from tests.support.sweeping import main; main({TRIALS})"
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, cwd=TREE, env=environment, stdout=subprocess.PIPE, text=True)


def finished(home: Path) -> list[Key]:
    """(workload, kernel, config) of every whole line of every journal, in their order."""
    found: list[Key] = []
    for path in (home / "journals").glob("*.jsonl"):
        if held := journal.header(path):
            found += [
                (held["workload"], name, identity(t.config)) for name, t in journal.read(path)
            ]
    return found


def has(home: Path, count: int) -> bool:
    """Whether so many trials are in the journals."""
    return len(finished(home)) >= count


def kill(process: subprocess.Popen[str], when: Callable[[], bool]) -> None:
    """Kills the process once `when` is true, and waits until its workers are gone, too."""
    until = time.monotonic() + 60
    while not when():
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    held = study.newest(None, "")
    while held and any(e.is_running and not e.worker.has_ended for e in held.slices()):
        assert time.monotonic() < until, "its workers outlive it"
        time.sleep(0.02)


def test_no_finished_trial_is_lost(home: Path) -> None:
    """At three random times, in a race, and while a record is half written."""
    chance = random.Random(7)
    for pause in ["", "race", "", "record", ""]:
        before = finished(home)
        process = start(home, pause)
        here, more = home / "here", len(before) + chance.randint(1, 6)
        kill(process, here.exists if pause else partial(has, home, more))
        after = finished(home)
        assert set(before) <= set(after)
        assert not pause or here.exists()
    last = set(finished(home))
    with start(home) as process:
        out, _ = process.communicate(timeout=120)
    assert json.loads(out)["records"] == len(WEIGHTS)
    tried = finished(home)
    assert last <= set(tried)
    _nothing_twice(home)
    _whole(home)


def _nothing_twice(home: Path) -> None:
    """Only the config that a worker had in progress when it was killed is tried once more."""
    tried = (home / "tried").read_text().splitlines()
    assert len(tried) - len(set(tried)) <= KILLS * WORKERS


def _whole(home: Path) -> None:
    """The store has a record of each workload, and the study every slice."""
    records = Store([store.user_root()]).records()
    assert len({record.workload for record in records}) == len(WEIGHTS)
    held = study.newest(None, "")
    assert held is not None
    slices = held.slices()
    assert not any(each.is_running for each in slices)
    lost = [each for each in slices if each.found is None]
    assert len(lost) >= 5
    assert not [each.lost for each in lost if each.counts]
    journals = {each.found["journal"] for each in slices if each.found is not None}
    assert len(journals) == len(WEIGHTS)  # each continued its own
