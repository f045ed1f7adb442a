"""tunefa search --resume: after Ctrl-C, kill -9, and where there is nothing to go on with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.fake_objective import Fake
from tests.support.processes import environment, none_left
from tests.support.tree import TREE
from tunefa.cli import targets
from tunefa.compile.launch.driver import SeenDevice
from tunefa.measure import measured
from tunefa.spec.trial import Config, identity
from tunefa.store import journal

OURS = ("--kernel", "attention_fwd_triton")
SMALL = ("search", "--arch", "sm90", "--seqlen", "1024", *OURS)
"""A workload that can take the 100 us that `Fake` says."""

KILLED = """
import sys
sys.path[:0] = {path!r}
from tests.support.fake_objective import Fake
from tunefa.measure import measured
from tunefa.search import run as search
from tunefa.cli import main, targets
from tunefa.compile.launch.driver import SeenDevice

class Slow(Fake):
    pause_s = 0.02

if __name__ == "__main__":
    search.Predicted = Slow
    measured.gpu_objective = lambda mode: Slow
    targets.seen = lambda: [SeenDevice(*device) for device in {seen}]
    main()
"""


def lines_in(home: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in home.glob("journals/*.jsonl"))


def killed(command: list[str], home: Path, trials: int) -> Path:
    """Starts a search, kills it -9 once it has so many trials; returns its journal.

    No process of it is left then.
    """
    process = subprocess.Popen(
        command,
        env=environment(home) | {"TUNEFA_KILLED": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 120
        while lines_in(home) < trials + 1:
            assert process.poll() is None, "the search ended by itself"
            assert time.monotonic() < until
            time.sleep(0.005)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert none_left("TUNEFA_KILLED")
    (path,) = home.glob("journals/*.jsonl")
    return path


def identities(path: Path) -> Counter[tuple[object, ...]]:
    """The number of times each config is in a journal, a line of the final check not counted."""
    return Counter(identity(t.config) for _, t in journal.read(path) if t.error is None)


def counted(fake: type[Fake]) -> list[tuple[object, ...]]:
    """All configs that are tried from now on."""
    tried: list[tuple[object, ...]] = []

    def judge(config: Config) -> float:
        tried.append(identity(config))
        return 100.0

    fake.judge = staticmethod(judge)
    return tried


ASKED = (*SMALL, "--strategy", "random")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a search that was killed, with its journal."""
    folder = tmp_path_factory.mktemp("killed")
    script = folder / "killed.py"
    script.write_text(KILLED.format(path=[str(TREE), *sys.path], seen=[]))
    command = [sys.executable, str(script), *ASKED, "--budget", "100000"]
    killed(command, folder / "home", 12)
    return folder / "home"


@pytest.mark.parametrize("torn", [b"", b'{"kernel": "attention_fwd_tri', bytes(100)])
def test_killed_search_goes_on(
    run: Run, fake: type[Fake], home: Path, left: Path, torn: bytes
) -> None:
    shutil.copytree(left, home)
    (path,) = home.glob("journals/*.jsonl")
    before = identities(path)
    assert len(before) >= 12 and not list(home.glob("results/**/*.yaml"))
    with path.open("ab") as file:
        file.write(torn)
    tried = counted(fake)
    budget = len(before) + 9
    result = run(*ASKED, "--resume", "--budget", str(budget), "--json")
    assert f"Continuing {path}: {len(before)} trials will not be repeated." in result.stderr
    said = json.loads(result.stdout)
    assert said["trials"] == budget == said["record"]["provenance"]["trials"]
    assert said["journal"] == str(path) and len(list(home.glob("journals/*.jsonl"))) == 1
    assert len(tried) == len(set(tried)) == 9 and not set(tried) & set(before)
    assert len({identity(t.config) for _, t in journal.read(path)}) == budget


def test_killed_measured_search_goes_on_in_its_mode(
    run: Run, fake: type[Fake], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = ("NVIDIA H200", (9, 0), 132, 10**11)
    script = tmp_path / "killed.py"
    script.write_text(KILLED.format(path=[str(TREE), *sys.path], seen=[seen]))
    asked = ("search", *OURS, "--seqlen", "1024", "--mode", "graph")
    path = killed([sys.executable, str(script), *asked, "--budget", "100000"], home, 12)
    before = identities(path)
    fake.kind = "measured"
    monkeypatch.setattr(measured, "gpu_objective", lambda mode: fake)
    monkeypatch.setattr(targets, "seen", lambda: [SeenDevice(*seen)])
    budget = ("--budget", str(len(before) + 5))
    eager = ("search", *OURS, "--seqlen", "1024", "--mode", "eager")
    error = run(*eager, "--budget", "5", "--resume").stderr
    assert "There is no journal of this workload, arch, device and kernels in eager mode" in error
    tried = counted(fake)
    said = json.loads(run(*asked, *budget, "--resume", "--json").stdout)
    assert said["journal"] == str(path) and said["trials"] == len(before) + 5
    assert (said["mode"], said["record"]["mode"]) == ("graph", "graph")
    assert set(before) < set(identities(path))
    assert len(tried) == len(set(tried)) == 5 and not set(tried) & set(before)


@pytest.mark.slow
def test_killed_search_with_the_real_compiler_goes_on(run: Run, home: Path) -> None:
    quick = (*SMALL, "--head-dim", "64", "--workers", "1")
    path = killed([sys.executable, "-m", "tunefa", *quick, "--budget", "200"], home, 3)
    before = set(identities(path))
    budget = len(before) + 2
    said = json.loads(run(*quick, "--resume", str(path), "--budget", str(budget), "--json").stdout)
    assert said["trials"] == budget and said["record"] is not None
    assert len({identity(t.config) for _, t in journal.read(path)}) == budget
    lines = path.read_bytes().splitlines()
    assert all(json.loads(line) for line in lines)
    searched = [identity(t.config) for _, t in list(journal.read(path))[:budget]]
    assert len(set(searched)) == budget, "the lines after these are the final check's"


def test_nothing_to_go_on_with(run: Run, fake: type[Fake], home: Path) -> None:
    result = run(*SMALL, "--budget", "5", "--resume")
    assert (
        f"There is no journal of this workload, arch, device and kernels in {home}" in result.stderr
    )
    assert ": a new search starts.\n" in result.stderr
    assert "5 trials in " in result.stdout
    other = ("search", *OURS, "--resume", "--arch", "sm90", "--seqlen", "2048", "--budget", "5")
    assert "a new search starts" in run(*other).stderr
    assert len(list(home.glob("journals/*.jsonl"))) == 2


def test_another_searchs_journal_is_left_alone(run: Run, fake: type[Fake], home: Path) -> None:
    run("search", *OURS, "--arch", "sm90", "--seqlen", "2048", "--budget", "5")
    (path,) = home.glob("journals/*.jsonl")
    before = path.read_bytes()
    error = run(*SMALL, "--budget", "5", "--resume", str(path)).stderr
    assert f"{path} is not continued, and its trials are not used: its workload is " in error
    assert path.read_bytes() == before and len(list(home.glob("journals/*.jsonl"))) == 2


def test_mistakes_are_found_before_the_search(run: Run, fake: type[Fake], home: Path) -> None:
    error = run(*SMALL, "--resume", "gone.jsonl", code=1).stderr
    assert "Error: gone.jsonl cannot be read: No such file or directory" in error
    run(*SMALL, "--budget", "5")
    (path,) = home.glob("journals/*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"outcome"', b'"out', 1))
    error = run(*SMALL, "--resume", str(path), code=1).stderr
    assert f"Error: {path}:2: this line is not a trial" in error
    error = run(*SMALL, "--resume", "--budget", "5").stderr
    assert f"A journal is left out: {path}:2: this line is not a trial" in error
