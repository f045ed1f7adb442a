"""Searches in which everything fails that can: each failure costs one config and can be listed."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support import fake_bench
from tests.support.fake_objective import Fake, Seen, request, user_store
from tests.support.own_kernels import FAULTY_SOURCE, OwnKernels
from tests.support.processes import alive, none_left
from tests.support.tree import TREE
from tunefa import assets
from tunefa.cli import main
from tunefa.compile import pool as compile_pool
from tunefa.errors import TunefaError
from tunefa.measure import loading, measured
from tunefa.search import resume
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.store import journal
from tunefa.store.results import Store


def listed() -> dict[str, str]:
    """The lines of `tunefa show --failures`: outcome and reason by the fault of a config."""
    shown = CliRunner().invoke(main, ["show", "--failures", "--json"])
    assert shown.exit_code == 0, shown.output
    found = {}
    for each in json.loads(shown.stdout)["failures"]:
        config = each["config"]
        place = f"compiler {config['FAULT']}"
        if config["DEVICE"] != "fine":
            place = f"device {config['DEVICE']}"
        found[place] = f"{each['outcome']}: {each['reason']}"
    return found


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "run_in_process", fake_bench.run)
    monkeypatch.setattr(loading, "load_device", fake_bench.load_nothing)


def test_every_fault_costs_one_config_and_is_listed(
    own_kernels: OwnKernels, bench: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFA_FAULTS", "1")
    monkeypatch.setattr(measured, "RUN_LIMIT_S", 8.0)
    monkeypatch.setattr(compile_pool, "COMPILE_LIMIT_S", 12.0)
    kernel = own_kernels.add("every_fault", FAULTY_SOURCE, fake_bench.SPACE)
    beside: list[list[str]] = []
    race = measured.Measured._call

    def call(self: measured.Measured, method: str, *rest: object) -> object:
        if method == "race":
            beside.append([line for line in alive("TUNEFA_FAULTS") if "sleep" in line])
        return race(self, method, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(measured.Measured, "_call", call)
    asked = request(kernel, measured=True, budget=Budget(trials=50), strategy="grid")
    result = search.search(asked, user_store())
    assert len(result.finished) == len(result.feasible["every_fault"].configs) == 10
    assert result.record is not None and result.record.config["DEVICE"] == "fine"
    assert result.record.median_us == 10.0 and result.record.mode == "eager"
    failures = listed()
    assert failures.pop("compiler error").startswith("compile_failed: ")
    assert failures == {
        "compiler exit": "crashed: the compiler died with exit code 7",
        "compiler segfault": "crashed: the compiler died with exit code -11",
        "compiler hang": "timeout: compiling took over 12 s",
        "device killed": "crashed: the process died with exit code -9",
        "device segfault": "crashed: the process died with exit code -11",
        "device hang": "timeout: running took over 8 s",
        "device poisoned": "crashed: RuntimeError: an illegal memory access was encountered",
        "device wrong": "wrong: error 5.0e-01",
    }
    assert beside == [[]] and none_left("TUNEFA_FAULTS")


def test_compiles_that_hang_do_not_hold_a_search_beyond_its_seconds(
    own_kernels: OwnKernels, bench: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configs that had no time are not tried, and are no failure."""
    monkeypatch.setenv("TUNEFA_SECONDS", "1")
    source = FAULTY_SOURCE.replace('if fault == "exit":\n        os._exit(7)', "")
    source = source.replace('if fault == "hang":', 'if fault != "none":')
    kernel = own_kernels.add("hangs_at_the_end", source, fake_bench.SPACE)
    start = time.monotonic()
    asked = request(kernel, measured=True, budget=Budget(seconds=12), strategy="grid")
    result = search.search(asked, user_store())
    assert time.monotonic() - start < 20, "one compile alone may take 60 s"
    assert result.record is not None
    assert all(f.trial.config["FAULT"] == "none" for f in result.finished)
    assert none_left("TUNEFA_SECONDS")


WORDS = ["search", "--arch", "sm90", "--seqlen", "2048", "--kernel", "attention_fwd_triton",
         "--strategy", "grid"]  # fmt: skip
FULL = """
import resource, sys
sys.path[:0] = {path!r}
from tests.support.fake_objective import Fake
from tunefa.search import run as search
from tunefa.cli import main, targets

search.Predicted, targets.seen = Fake, lambda: []
resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000))
main([*{words!r}, "--budget", "1000"])
"""


def test_a_disk_that_fills_up_loses_no_trial_and_the_search_can_go_on(
    fake: type[Fake], tmp_path: Path
) -> None:
    script = tmp_path / "full.py"
    script.write_text(textwrap.dedent(FULL.format(path=[str(TREE), *sys.path], words=WORDS)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(("Error: the journal ", "Error: the study ")), "whichever fills first"
    assert "File too large: free space" in last
    (path,) = journal.paths()
    held = [trial for _, trial in journal.read(path)]
    assert len(held) > 2 and path.stat().st_size <= 30000
    more = CliRunner().invoke(main, [*WORDS, "--resume", "--json", "--budget", str(len(held) + 3)])
    assert more.exit_code == 0, more.output
    assert f"{len(held)} trials will not be repeated" in more.stderr
    said = json.loads(more.stdout)
    assert said["trials"] == len(held) + 3 and said["journal"] == str(path)
    assert said["record"] is not None


def test_a_record_that_cannot_be_written_is_made_again_without_a_trial(fake: type[Fake]) -> None:
    full = assets.home() / "file"
    full.parent.mkdir(parents=True, exist_ok=True)
    full.touch()
    with pytest.raises(TunefaError, match="cannot write"):
        search.search(request(), Store([full / "store"]))
    seen = Seen()
    found = resume.find(request())
    result = search.search(request(resume=found.path), user_store(), seen)
    assert result.record is not None and user_store().records() == [result.record]
    assert {report.stage for report in seen.reports} == {"check"}
