"""Kernels that raise, exit, hang, take memory and print; searches that are killed.

Each of them costs one config, and leaves no process behind.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.support.hostile_kernel import space
from tests.support.own_kernels import OwnKernels
from tests.support.processes import alive, none_left
from tunefa.cli import main
from tunefa.compile import pool
from tunefa.measure import gate
from tunefa.store import journal

if TYPE_CHECKING:
    from tests.attacks.conftest import Victims

RAISING = ("value_error", "key_error", "memory_error", "recursion", "system_exit", "keyboard")
COMPILING = (*RAISING, "import", "device_import", "exit_zero", "print")
SMALL = ("--arch", "sm90", "--seqlen", "512")


def searched(name: str, *words: str) -> dict[str, Any]:
    """Returns the document of `tunefa search --json`. The search tries all configs: the default
    strategy would end once no config could be predicted to beat the default."""
    line = ["search", "--kernel", name, *SMALL, "--workers", "1", "--json", "--strategy", "random"]
    done = CliRunner().invoke(main, [*line, *words])
    assert done.exit_code == 0, (done.output, done.exception)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def failures() -> dict[str, str]:
    """Returns the outcomes in `tunefa show --failures`, by what the config did."""
    shown = CliRunner().invoke(main, ["show", "--failures", "--json"])
    assert shown.exit_code == 0, shown.output
    found = {}
    for each in json.loads(shown.stdout)["failures"]:
        did = [each["config"][name] for name in ("COMPILE", "RUN")]
        what = next(fault for fault in did if fault != "nothing")
        found[what] = f"{each['outcome']}: {each['reason']}"
    return found


def test_whatever_a_kernel_does_as_it_is_compiled_costs_one_config(
    own_kernels: OwnKernels,
) -> None:
    own_kernels.add_hostile("hostile", space(COMPILING))
    said = searched("hostile", "--budget", "40")
    assert said["trials"] == len(COMPILING) + 1 and said["failures"] == {
        "compile_failed": len(COMPILING) - 2, "crashed": 1,
    }  # fmt: skip
    assert said["record"]["config"] == {"COMPILE": "nothing", "RUN": "nothing", "COPY": 0}
    place = r"\(hostile\.py:\d+\)"
    reasons = failures()
    for what, reason in {
        "value_error": f"^compile_failed: ValueError: this config is told to fail {place}$",
        "key_error": f"^compile_failed: KeyError: 'BLOCK_Q' {place}$",
        "memory_error": f"^compile_failed: MemoryError {place}$",
        "recursion": f"^compile_failed: RecursionError: maximum recursion depth .*{place}$",
        "system_exit": f"^compile_failed: SystemExit: bye {place}$",
        "keyboard": f"^compile_failed: KeyboardInterrupt {place}$",
        "import": f"^compile_failed: ModuleNotFoundError: .*no_such_module' {place}$",
        "device_import": "^compile_failed: the kernel's device code cannot be imported: ",
        "exit_zero": "^crashed: the compiler died with exit code 0$",
    }.items():
        assert re.search(reason, reasons.pop(what)), what
    assert not reasons


@pytest.mark.attack
def test_what_killed_a_search_is_not_tried_again(own_kernels: OwnKernels) -> None:
    own_kernels.add_hostile("resumed", space(("system_exit", "exit_zero")))
    searched("resumed", "--budget", "2")
    said = searched("resumed", "--budget", "10", "--resume")
    assert said["trials"] == 3
    again = searched("resumed", "--budget", "10", "--resume")
    assert again["trials"] == 3 and again["journal"] == said["journal"]


@pytest.mark.attack
def test_a_compiler_that_takes_all_memory_is_ended(
    own_kernels: OwnKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MEMORY_BYTES", 2**30)
    own_kernels.add_hostile("greedy", space(["memory"]))
    assert searched("greedy", "--budget", "10")["failures"] == {"crashed": 1}
    assert failures() == {"memory": "crashed: the compiler held over 1.0 GiB of memory"}


@pytest.mark.attack
@pytest.mark.parametrize(
    ("what", "reason"),
    {
        "value_error": r"crashed: ValueError: this config is told to fail \(.*\)",
        "memory_error": r"crashed: MemoryError \(.*\)",
        "system_exit": r"crashed: SystemExit: bye \(.*\)",
        "keyboard": r"crashed: KeyboardInterrupt \(.*\)",
        "import": r"crashed: ModuleNotFoundError: .*no_such_module' \(.*\)",
        "exit_zero": "crashed: the interpreter died with exit code 0",
        "memory": r"crashed: the interpreter held over 1\.0 GiB of memory",
        "stuck": "timeout: interpreting took over 15 s",
    }.items(),
)
def test_whatever_a_kernel_does_in_the_interpreter_costs_one_config(
    what: str, reason: str, own_kernels: OwnKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default is checked first, as all are predicted to be equally fast."""
    monkeypatch.setattr(gate, "INTERPRETER_LIMIT_S", 15.0)
    monkeypatch.setattr(gate, "INTERPRETER_MEMORY_BYTES", 2**30)
    name = f"interpreted_{what}"
    own_kernels.add_hostile(name, space((), [what], default=("nothing", what)))
    said = searched(name, "--budget", "10")
    assert said["record"]["config"]["RUN"] == "nothing"
    assert re.fullmatch(reason, failures()[what])


def until(there: Callable[[], object], limit_s: float = 60.0) -> None:
    """Waits for what another process does."""
    end = time.monotonic() + limit_s
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.attack
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("where", ["compiler", "interpreter"])
def test_a_killed_search_leaves_nothing_of_what_is_stuck_in_c(
    where: str, number: signal.Signals, own_kernels: OwnKernels, victims: Victims
) -> None:
    name = f"stuck_{where}_{number}"
    compiling, running = (["daemon"], []) if where == "compiler" else ([], ["stuck"])
    default = ("daemon", "nothing") if where == "compiler" else ("nothing", "stuck")
    own_kernels.add_hostile(name, space(compiling, running, default))
    victim = victims.start("TUNEFA_STUCK", "search", "--kernel", name, *SMALL, "--budget", "9")
    if where == "compiler":
        until(lambda: any("sleep" in line for line in alive("TUNEFA_STUCK")))
    else:
        assert victim.stderr is not None
        while not victim.stderr.readline().startswith("check:"):
            pass
        time.sleep(5.0)  # the interpreter imports PyTorch before it is stuck
    victim.send_signal(number)
    victim.wait()
    assert none_left("TUNEFA_STUCK"), alive("TUNEFA_STUCK")


KILLS = 30


@pytest.mark.attack
def test_searches_killed_at_random_lose_no_trial_and_leave_no_process(
    own_kernels: OwnKernels, victims: Victims
) -> None:
    """Half of the searches compile until they are killed, and half are stuck in their check."""
    seed = random.Random(15)
    own_kernels.add_hostile("compiled", space(["daemon", "stuck", "system_exit"], copies=900))
    own_kernels.add_hostile("checked", space([], ["stuck"], default=("nothing", "stuck")))
    held: dict[Path, int] = {}
    for kill in range(KILLS):
        name, mark = ("compiled", "checked")[kill % 2], f"TUNEFA_KILL_{kill}_"
        line = ["search", "--kernel", name, *SMALL, "--workers", "3", "--budget", "900"]
        victim = victims.start(mark, *line, "--strategy", "random", "--resume")
        with contextlib.suppress(subprocess.TimeoutExpired):
            victim.wait(seed.uniform(0.1, 12.0))
        victim.send_signal(seed.choice([signal.SIGKILL, signal.SIGTERM]))
        assert victim.wait() < 0, "it was killed, and did not end by itself"
        assert none_left(mark), alive(mark)
        found = {path: len(list(journal.read(path))) for path in victims.journals()}
        assert all(found[path] >= count for path, count in held.items())
        held = found
        print(f"kill {kill} of a search of {name}: {victim.returncode}, {sorted(held.values())}")
    assert sum(held.values()) > KILLS, "some were killed in the middle"
    line = ["search", "--kernel", "compiled", *SMALL, "--budget", "1", "--resume"]
    said = victims.start("TUNEFA_LAST", *line).communicate(timeout=300)[1]
    assert f"{max(held.values())} trials will not be repeated" in said, said
