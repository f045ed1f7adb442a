"""tunefa/compile/pool.py: what a compiler can do to the process it runs in, and what is left.

The kernel here does on demand what real compilers were seen to do: it fails with an error, ends or
kills its process, waits for a child that never ends. Real configs that do so change with each
release of Triton; how one is put where spawned workers find it is told in
tests/support/own_kernels.py.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.own_kernels import FAULTY_SOURCE, FAULTY_SPACE, OwnKernels
from tests.support.processes import Shared, alive, none_left
from tunefa.compile import languages, workers
from tunefa.compile import pool as compile_pool
from tunefa.compile.contract import Compiled
from tunefa.compile.pool import FINISH_S, CompilePool
from tunefa.compile.workers import Workers
from tunefa.errors import TunefaError
from tunefa.measure import check
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources, Trial
from tunefa.spec.workload import Workload

SM90 = Target.named("sm90")
WORKLOAD = Workload.parse("q128_d64")
pytestmark = pytest.mark.usefixtures("ctrl_c_raises")


def on_sm90(kernel: Kernel) -> Case:
    return Case(kernel, WORKLOAD, SM90)


@pytest.fixture
def faulty(own_kernels: OwnKernels) -> Case:
    return on_sm90(own_kernels.add("faulty", FAULTY_SOURCE, FAULTY_SPACE))


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A variable of the environment that only processes begun after it was set have."""
    mark = f"TUNEFA_TEST_{uuid.uuid4().hex}"
    monkeypatch.setenv(mark, "1")
    yield mark


def test_shared_compilers_finish_what_they_have_begun_and_nothing_else(faulty: Case) -> None:
    made: list[Future[Any]] = [Future() for _ in range(3)]
    left: Any = iter(made)
    shared: Any = Shared(
        count=1, lasting=True, apart=False, submit=lambda *_: next(left), stop=pytest.fail,
        renew=pytest.fail,
    )  # fmt: skip
    pool = CompilePool(faulty, processes=shared)
    pending = [pool.submit({"FAULT": "none"}) for _ in made]
    made[0].set_running_or_notify_cancel()
    threading.Timer(0.05, made[0].set_result, [("ok", None, 0.0, "")]).start()
    pool.abandon(pending)
    assert made[0].done() and [each.cancelled() for each in made] == [False, True, True]


def test_the_compilers_of_one_search_stop_at_once(faulty: Case) -> None:
    """Starting others takes less time than what they have begun."""
    with Workers(1, lasting=False) as shared:
        pool = CompilePool(faulty, processes=shared)
        begun, waiting = (pool.submit({"FAULT": "hang"}) for _ in range(2))
        while not begun.future.running():
            time.sleep(0.01)
        before = time.monotonic()
        pool.abandon([begun, waiting])
        assert time.monotonic() - before < FINISH_S
        assert begun.was_stopped and waiting.was_stopped
        again = pool.submit({"FAULT": "none"})
        assert again.trial().outcome == "ok" and not again.was_stopped


def test_compilers_are_imported_before_they_are_needed() -> None:
    with Workers(2) as processes:
        for language in ("gluon", "cuda"):
            compile_pool.warm_up(processes, language)
        names = [processes.submit(_imported, (), 60.0).result() for _ in range(8)]
    assert all("triton.experimental.gluon._runtime" in each for each in names)


def _imported() -> list[str]:
    return list(sys.modules)


def compiled(case: Case, *faults: str, workers: int = 1) -> list[Trial]:
    """The trials of configs with these faults, in their order."""
    with CompilePool(case, workers) as pool:
        pending = [pool.submit({"FAULT": fault}) for fault in faults]
        return [each.trial() for each in pending]


def test_a_config_that_compiles(faulty: Case) -> None:
    (trial,) = compiled(faulty, "none")
    assert (trial.outcome, trial.reason, trial.config) == ("ok", "", {"FAULT": "none"})
    assert trial.resources is not None and trial.resources.registers
    assert trial.resources.smem_bytes == trial.resources.spill_bytes == 0
    assert trial.compile_s is not None and trial.compile_s > 0


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        ("error", "compile_failed", "this config is told to fail"),
        ("exit", "crashed", "the compiler died with exit code 7"),
        ("segfault", "crashed", "the compiler died with exit code -11"),
    ],
)
def test_a_config_that_fails_takes_no_other_with_it(
    faulty: Case, family: str, fault: str, outcome: str, reason: str
) -> None:
    before, bad, after = compiled(faulty, "none", fault, "none")
    assert bad.outcome == outcome and reason in bad.reason
    assert "\n" not in bad.reason and bad.resources is None
    assert before.outcome == after.outcome == "ok"
    assert none_left(family)


def test_a_config_that_hangs(faulty: Case, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with CompilePool(faulty, 1) as pool:
        assert pool.submit({"FAULT": "none"}).trial().outcome == "ok"  # the worker is warm
        monkeypatch.setattr(compile_pool, "COMPILE_LIMIT_S", 1.0)
        start = time.monotonic()
        hanging = pool.submit({"FAULT": "hang"})
        bad = hanging.trial()
        assert 0.9 < time.monotonic() - start < 10
        assert (bad.outcome, bad.reason) == ("timeout", "compiling took over 1 s")
        monkeypatch.setattr(compile_pool, "COMPILE_LIMIT_S", 60.0)
        assert pool.submit({"FAULT": "none"}).trial().outcome == "ok"
    assert none_left(family)


def test_leaving_stops_what_is_under_way(faulty: Case, family: str) -> None:
    with CompilePool(faulty, 2) as pool:
        pool.submit({"FAULT": "none"}).trial()
        for _ in range(5):
            pool.submit({"FAULT": "hang"})
        time.sleep(0.5)
        assert len(alive(family)) >= 2
        start = time.monotonic()
    assert time.monotonic() - start < 10
    assert none_left(family), alive(family)


def test_an_exception_inside_leaves_nothing_behind(faulty: Case, family: str) -> None:
    with pytest.raises(KeyboardInterrupt), CompilePool(faulty, 2) as pool:
        pool.submit({"FAULT": "hang"})
        pool.submit({"FAULT": "none"}).trial()
        raise KeyboardInterrupt
    assert none_left(family), alive(family)


def test_two_workers_compile_at_the_same_time(faulty: Case) -> None:
    with CompilePool(faulty, 2) as pool:
        pool.submit({"FAULT": "hang"})
        assert pool.submit({"FAULT": "none"}).trial().outcome == "ok"


def test_ctrl_c_waits_for_the_end_of_what_it_would_break(faulty: Case, family: str) -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), workers._delayed_ctrl_c():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        reached.append(1)
    assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with workers._delayed_ctrl_c():
        pass
    with pytest.raises(KeyError), workers._delayed_ctrl_c():
        raise KeyError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_pool_in_another_thread(faulty: Case, family: str) -> None:
    """Only the main thread may set a handler, and only it gets Ctrl-C."""
    with ThreadPoolExecutor(1) as thread:
        (trial,) = thread.submit(compiled, faulty, "none").result()
    assert trial.outcome == "ok"
    assert none_left(family)


def test_workers_are_as_many_as_processors_unless_told() -> None:
    case = on_sm90(kernels.load("attention_fwd_triton"))
    assert CompilePool(case, None).workers == os.cpu_count()
    assert CompilePool(case, 3).workers == 3


def test_shared_processes_serve_one_pool_after_the_other(
    own_kernels: OwnKernels, faulty: Case, family: str
) -> None:
    other = on_sm90(own_kernels.add("other_faulty", FAULTY_SOURCE, FAULTY_SPACE))
    with Workers(2) as processes:
        before = processes.submit(os.getpid, (), 60.0).result()
        for case in (faulty, other):
            with CompilePool(case, processes=processes) as pool:
                assert pool.workers == 2
                left = pool.submit({"FAULT": "none"})
            assert left.trial().outcome == "ok", "what is under way goes on"
        pids = {processes.submit(os.getpid, (), 60.0).result() for _ in range(20)}
        assert before in pids and len(pids) <= 2, "none was replaced"
    assert none_left(family)


def test_what_compilers_print_is_kept_off_the_terminal(
    faulty: Case, capfd: pytest.CaptureFixture[str]
) -> None:
    (trial,) = compiled(faulty, "noise")
    assert trial.outcome == "ok"
    assert capfd.readouterr() == ("", "")


def test_without_a_compiler_the_user_is_told(
    faulty: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """TunefaError crosses from the worker: a missing compiler is no property of a config."""
    (tmp_path / "triton.py").write_text("raise ImportError('not today')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TunefaError, match="no compiler found: Triton cannot be imported"):
        compiled(faulty, "none")


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("", "CompilationError: at 3:4"),
        ("note: harmless\n", "CompilationError: at 3:4"),
        ("a.py:3:4: error: Failures have been detected while\n", "CompilationError: at 3:4"),
        ("a\nx.py:1: error:   operand   too big\nerror: next", "x.py:1: error: operand too big"),
        ("ptxas fatal   : out of registers\n", "ptxas fatal : out of registers"),
        ("python: a.cpp:7: Assertion `x' failed.\n", "python: a.cpp:7: Assertion `x' failed."),
        ("LLVM ERROR: cannot select\n", "LLVM ERROR: cannot select"),
        ("error: " + "x" * 900, "error: " + "x" * 293),
    ],
)  # fmt: skip
def test_the_first_complaint_is_the_cause(log: str, cause: str) -> None:
    assert compile_pool._cause("CompilationError: at 3:4", log) == cause


def test_a_real_config_compiles_to_what_the_language_says() -> None:
    case = on_sm90(kernels.load("attention_fwd_triton"))
    config = case.default()
    with CompilePool(case, 1) as pool:
        trial = pool.submit(config).trial()
    direct = languages.load("triton").compile(case, config)
    assert trial.resources == direct.resources
    assert trial.config == config


def test_what_the_gate_runs_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    class Language:
        """A language whose binaries depend on whether lengths differ."""

        @staticmethod
        def compile(case: Case, *rest: Any) -> Compiled:
            compiled.append(str(case.workload))
            return Compiled(None, Resources, 0.0)

        @staticmethod
        def binary_key(case: Case, config: Any, aligned: bool) -> bool:
            return case.workload.seqlen_q == case.workload.seqlen_k

    monkeypatch.setattr(languages, "load", lambda name: Language)
    sizes = "fwd_b1_h2_kv2_q{}_k512_d64_bf16_causal"
    square, other = sizes.format(512), sizes.format(9)
    checked = check.ragged(Workload.parse(square), {})
    also = lambda case, config: checked  # noqa: E731
    compile_pool._compile(("attention_fwd_triton", square, "sm90"), {}, also)
    assert compiled == [square, str(checked)] and square != str(checked)
    compile_pool._compile(("attention_fwd_triton", other, "sm90"), {}, also)
    assert len(compiled) == 3, "one binary serves both"
    compile_pool._compile(("attention_fwd_triton", square, "sm90"), {})
    assert len(compiled) == 4, "without a gate there is nothing else to run"
