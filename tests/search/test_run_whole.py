"""Whole searches with the real compiler, pool, model and interpreter; no GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import kept_interpreter
from tests.support.fake_objective import KERNEL, SM90, WORKLOAD, Seen, request, user_store
from tests.support.own_kernels import OwnKernels
from tests.support.processes import none_left
from tests.support.tree import TREE
from tunefa.compile.workers import Workers
from tunefa.measure import gate
from tunefa.measure.comparison import Comparison
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.spec.target import Target
from tunefa.store import journal
from tunefa.store import results as store
from tunefa.store.results import Store

A100 = Target.named("a100")
"""Its configs need no disassembler, which takes half a second for each config of an H200."""


def test_a_small_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFA_WHOLE_SEARCH", "1")
    checked = []
    interpret = gate.in_interpreter

    def counted(*args: Any) -> Comparison:
        checked.append((args[1], interpret(*args)))
        return checked[-1][1]

    monkeypatch.setattr(gate, "in_interpreter", counted)
    seen = Seen()
    result = search.search(request(strategy="random", budget=Budget(trials=4)), user_store(), seen)
    record = result.record
    assert record is not None and result.stored is not None and not result.interrupted
    assert (record.objective, record.device) == ("predicted", None)
    assert record.resources is not None and record.resources.registers
    assert KERNEL.refusal(record.config, WORKLOAD, SM90) is None
    # Everything is where TUNEFA_HOME says, and reads back.
    home = Path(os.environ["TUNEFA_HOME"])
    assert home in result.stored.parents and home in result.journal.parents
    assert store.read(result.stored) == [record] == user_store().records()
    trials = [trial for _, trial in journal.read(result.journal)]
    assert len({repr(trial.config) for trial in trials}) == 4 == len(result.finished)
    assert all(trial.outcome != "ok" or trial.resources for trial in trials)
    # The interpreter really ran, on the winner, and only there.
    assert [config for config, _ in checked] == [record.config]
    assert checked[0][1].passed and 0 < checked[0][1].error < 1e-3
    assert f"relative error {checked[0][1].error:.1e}" in record.provenance["check"]
    assert {report.stage for report in seen.reports} == {"search", "check"}
    assert none_left("TUNEFA_WHOLE_SEARCH")


@pytest.fixture(scope="module")
def process() -> Iterator[Workers]:
    with kept_interpreter.started() as found:
        yield found


@pytest.fixture
def one_interpreter(process: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests with kernels of their own check them in one process."""
    kept_interpreter.install(monkeypatch, process)


def test_a_kernel_that_computes_wrong_numbers_never_becomes_a_record(
    own_kernels: OwnKernels, one_interpreter: None
) -> None:
    wrong = own_kernels.add_attention(
        "wrong_numbers",
        device=lambda source: source.replace("acc = acc * row_scale[:, None]", "acc = acc"),
    )
    result = search.search(request(wrong, target=A100, budget=Budget(trials=2)), user_store())
    assert result.record is None and user_store().records() == []
    assert [f.trial.outcome for f in result.finished] == ["wrong", "wrong"]
    assert all("logsumexp" in f.trial.reason for f in result.finished)
    assert {t.outcome for _, t in list(journal.read(result.journal))[-2:]} == {"wrong"}


def test_kernels_that_are_wrong_or_never_compile_beside_a_right_one(
    own_kernels: OwnKernels, one_interpreter: None
) -> None:
    wrong = own_kernels.add_attention(
        "wrong_beside",
        device=lambda source: source.replace("offset = seqlen_k - seqlen_q", "offset = 0"),
    )
    broken = own_kernels.add_attention(
        "broken_beside",
        device=lambda source: source.replace("LN_2 + tl.log", "LN_2 + tl.nothing"),
    )
    right = own_kernels.add_attention("right_beside")
    asked = request(wrong, broken, right, target=A100, budget=Budget(trials=3))
    result = search.search(asked, user_store())
    assert result.record is not None and result.record.kernel == "right_beside"
    assert {f.kernel: f.trial.outcome for f in result.finished} == {
        "wrong_beside": "wrong",
        "broken_beside": "compile_failed",
        "right_beside": "ok",
    }
    assert ["nothing" in f.trial.reason for f in result.finished].count(True) == 1


SEARCH = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
sys.path[:0] = {path!r}
from dataclasses import replace
from tests.support.fake_objective import request, user_store
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

if __name__ == "__main__":
    asked = request(budget=Budget(trials={trials}), workers={workers}, strategy={strategy!r})
    asked = replace(asked, workload=Workload.parse({workload!r}), target=Target.named("a100"))
    result = search.search(asked, user_store(), lambda p: print(p.done, flush=True))
    print(result.interrupted, result.stored, result.journal, flush=True)
"""


def started(folder: Path, number: int, **changes: Any) -> subprocess.Popen[str]:
    """A search in a process and process group of its own, as from a shell."""
    words = {"trials": 3, "workers": 2, "strategy": "auto", "workload": str(WORKLOAD)}
    script = folder / f"search_{number}.py"
    script.write_text(SEARCH.format(path=[str(TREE), *sys.path], **{**words, **changes}))
    return subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def test_two_searches_at_once_keep_both_after_ctrl_c_in_the_terminal_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGINT reaches the whole process group, the workers too: the best so far is kept."""
    monkeypatch.setenv("TUNEFA_CTRL_C", "1")
    other = started(tmp_path, 1, trials=2, workers=1, workload="q512_h4_d64_full")
    running = started(tmp_path, 2, trials=10**6, strategy="grid")
    assert running.stdout is not None
    while running.stdout.readline().strip() != "3":
        assert running.poll() is None
    start = time.monotonic()
    os.killpg(running.pid, signal.SIGINT)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 0, "the search ends by itself, with a result"
    assert time.monotonic() - start < 30
    interrupted, stored, kept = output.splitlines()[-1].split()
    assert interrupted == "True"
    (record,) = store.read(Path(stored))
    assert record.objective == "predicted"
    trials = [trial for _, trial in journal.read(Path(kept))]
    assert len(trials) >= 3 and record.config in [trial.config for trial in trials]
    output, _ = other.communicate(timeout=120)
    assert other.returncode == 0
    interrupted, stored, kept_too = output.splitlines()[-1].split()
    assert interrupted == "False" and store.read(Path(stored))[0].workload.seqlen_q == 512
    assert sorted(r.workload.seqlen_q for r in user_store().records()) == [512, 1024]
    assert {Path(kept), Path(kept_too)} == set(journal.paths()) and kept != kept_too
    assert none_left("TUNEFA_CTRL_C")


def test_a_search_with_failing_configs_finds_the_others(
    own_kernels: OwnKernels, one_interpreter: None
) -> None:
    """Half of this space crashes its compiler; the search goes on and the winner is sound."""
    crash = (
        'if config["BLOCK_N"] >= 64:\n        __import__("os")._exit(3)\n    constants = _constants'
    )
    kernel = own_kernels.add_attention(
        "crashes_by_half", lambda source: source.replace("constants = _constants", crash, 1)
    )
    asked = request(kernel, target=A100, budget=Budget(trials=4), strategy="random")
    result = search.search(asked, Store([store.user_root()]))
    outcomes = {f.trial.outcome for f in result.finished}
    assert outcomes == {"ok", "crashed"}
    assert result.record is not None and result.record.config["BLOCK_N"] < 64
