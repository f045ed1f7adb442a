"""tunefa/compile/worker_process.py: a keeper ends its task's process, whatever that is doing."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import environment, gone, none_left
from tunefa import assets
from tunefa.compile import worker_process
from tunefa.compile.workers import ProcessLost, TaskRaised, Workers

LIMIT_S = 60.0
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prctl and /proc are Linux's")


@pytest.fixture
def workers() -> Iterator[Workers]:
    with Workers(1) as made:
        yield made


def stuck() -> None:
    """Waits in C for a mutex that it holds itself, and holds the interpreter's lock: a signal
    neither ends the wait nor runs a handler of Python."""
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


def detached_then(what: str) -> int:
    """Starts a process in a session of its own whose parent ends; returns its process id."""
    shell = "setsid sleep 600 > /dev/null 2>&1 & echo $!"
    said = subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, text=True).stdout
    if what == "exit":
        os._exit(0)
    return int(said)


def hold_in_a_child(size: int) -> None:
    code = f"import time; held = b'x' * {size}; time.sleep(600)"
    subprocess.run([sys.executable, "-c", code])


def raise_what_has_no_words() -> None:
    class Wordless(Exception):
        def __str__(self) -> str:
            raise ValueError

    raise Wordless


def make_file() -> str:
    descriptor, path = tempfile.mkstemp()
    os.close(descriptor)
    return path


def test_an_exit_with_code_0_is_noticed_at_once(workers: Workers) -> None:
    workers.submit(os.getpid, (), LIMIT_S).result()  # it has started
    start = time.monotonic()
    with pytest.raises(ProcessLost, match=r"^died with exit code 0$"):
        workers.submit(os._exit, (0,), LIMIT_S).result()
    assert time.monotonic() - start < 10.0


def test_memory_over_the_limit_ends_a_worker() -> None:
    """The memory of its children counts too."""
    with Workers(1, 2**28) as workers:
        assert workers.submit(len, (b"x" * 2**20,), LIMIT_S).result() == 2**20
        with pytest.raises(ProcessLost, match=r"^held over 0\.2 GiB of memory$"):
            workers.submit(hold_in_a_child, (2**28,), LIMIT_S).result()


@pytest.mark.parametrize("what", ["return", "exit"])
def test_a_process_in_a_session_of_its_own_ends_too(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFA_DETACHED", "1")
    with Workers(1) as workers:
        begun = workers.submit(detached_then, (what,), LIMIT_S)
        if what == "exit":
            with pytest.raises(ProcessLost):
                begun.result()
        else:
            assert not gone(begun.result(), within_s=0.2)
    assert none_left("TUNEFA_DETACHED")


def test_whatever_a_task_raises_comes_back_as_one_error(workers: Workers) -> None:
    before = workers.submit(os.getpid, (), LIMIT_S).result()
    for error in (SystemExit, KeyboardInterrupt, MemoryError, GeneratorExit):
        with pytest.raises(TaskRaised, match=f"^{error.__name__}$"):
            workers.submit(raise_one, (error,), LIMIT_S).result()
    assert workers.submit(os.getpid, (), LIMIT_S).result() == before, "it was not replaced"


def raise_one(error: type[BaseException]) -> None:
    raise error


def test_errors_without_words_and_results_that_cannot_be_sent(workers: Workers) -> None:
    with pytest.raises(TaskRaised, match=r"^Wordless$"):
        workers.submit(raise_what_has_no_words, (), LIMIT_S).result()
    with pytest.raises(TaskRaised, match="pickle"):
        workers.submit(open, (os.devnull,), LIMIT_S).result()


def test_what_a_killed_task_leaves_in_the_temporary_folder_is_removed(workers: Workers) -> None:
    path = Path(workers.submit(make_file, (), LIMIT_S).result())
    assert path.exists()
    with pytest.raises(ProcessLost):
        workers.submit(os.killpg, (0, signal.SIGKILL), LIMIT_S).result()
    assert not path.parent.exists(), "the keeper is in another group"


KILLED = """
import sys, time
from tests.compile.test_worker_process import detached_then, stuck
from tunefa.compile.workers import Workers
workers = Workers(2)
workers.submit(detached_then, ("return",), 60).result()
workers.submit(stuck, (), 600)
print("ready", flush=True)
time.sleep(600)
"""


def test_the_death_of_tunefa_reaches_what_is_stuck_in_c(tmp_path: Path) -> None:
    """No main module is needed, so a script without a guard starts workers too."""
    parent = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        stdout=subprocess.PIPE,
        env={**environment(tmp_path), "TUNEFA_STUCK": "1"},
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    time.sleep(0.3)  # the task that hangs has been sent
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert none_left("TUNEFA_STUCK")


def test_a_place_in_a_kernel_is_named(own_error: BaseException) -> None:
    assert worker_process.said(own_error) == "KeyError: 'BLOCK_Q' (broken/host.py:2)"


@pytest.fixture
def own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BaseException:
    monkeypatch.setattr(assets, "root", lambda name: tmp_path / name)
    path = tmp_path / "kernels" / "broken" / "host.py"
    code = compile("def variant(config):\n    return config['BLOCK_Q']\n", str(path), "exec")
    module: dict[str, object] = {}
    exec(code, module)
    variant = module["variant"]
    assert callable(variant)
    with pytest.raises(KeyError) as caught:
        variant({})
    return caught.value
