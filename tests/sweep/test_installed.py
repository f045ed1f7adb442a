"""tunefa/sweep/installed.py: a worker knows what libraries say without loading PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.processes import environment
from tunefa.compile import languages, provenance
from tunefa.compile.workers import ProcessLost, Workers
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.sweep import installed
from tunefa.sweep.installed import Installed
from tunefa.sweep.processes import Started

NAMES = ("attention_fwd_cudnn", "attention_fwd_triton")
KERNELS = [kernels.load(name) for name in NAMES]
_SLOW = {"torch", "triton", "sqlalchemy", "scipy"}
_WITHOUT_PYTORCH = f"""
import sys
from tests.support.sweeping import made, plan
from tunefa.compile.workers import Workers
from tunefa.search import resume
from tunefa.search.budget import Budget
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.sweep import installed, versions
from tunefa.sweep.processes import Started
from tunefa.sweep.requests import Items, Requests
from pathlib import Path

asked = plan(targets=(), kernels=(), weights={{Workload.parse("q512_d64"): 1.0}})
items = Items.of(asked, [Target.named("h200")])
with Workers(1) as bench, Workers(1) as compilers:
    started = Started(bench, compilers)
    served = versions.kernels_of(asked, items)
    answer = installed.ask(started, served, "sm90")
    here = versions.agree(made(Path(sys.argv[1]), asked), asked, served, answer)
assert "attention_fwd_cudnn" in here.versions
request = Requests(asked, "sweep", 1, here).of(items.items[0], Budget(trials=4))
held = resume.header(request)["provenance"]
for kernel in request.kernels:
    assert request.provenance(kernel)["date"] and kernel.name in held
print(sorted({_SLOW} & set(sys.modules)), len(request.kernels))
"""


def test_a_search_of_a_sweep_loads_no_pytorch(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PYTORCH, str(tmp_path)],
        env=environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.startswith("[] ") and int(found.stdout.split()[-1]) > 1


def test_it_is_what_this_process_finds_too() -> None:
    with Workers(1) as bench, Workers(1) as compilers:
        found = installed.ask(Started(bench, compilers), KERNELS, "sm90")()
    for kernel in KERNELS:
        both = [{**each, "date": ""} for each in (found.versions[kernel.name],
                                                  provenance.of(kernel))]  # fmt: skip
        assert both[0] == both[1]
    assert found.lacking == languages.without_compiler(KERNELS, Target.named("sm90").arch)


class Asked:
    """A process that remembers what it was asked for, and is lost unless it has an answer."""

    def __init__(self, others: list[Asked], answer: Installed | None = None) -> None:
        self.names: list[str] = []
        self._all, self._answer = others, answer
        others.append(self)

    def submit(self, task: Any, arguments: tuple[Any, ...], limit_s: float) -> Any:
        self.names += arguments[0]
        return self

    def result(self) -> Installed:
        assert all(each.names for each in self._all), "one waits for the other"
        if self._answer is None:
            raise ProcessLost("died with exit code -11")
        return self._answer


def test_a_bench_says_what_needs_pytorch_and_compilers_the_rest() -> None:
    others: list[Asked] = []
    said = [Installed({name: {"torch": "2"}}, {name: "no"}) for name in NAMES]
    started: Any = Started(*[Asked(others, each) for each in said])  # type: ignore[arg-type]
    found = installed.ask(started, KERNELS, "sm90")()
    assert [each.names for each in others] == [[NAMES[0]], [NAMES[1]]]
    assert found == Installed({name: {"torch": "2"} for name in NAMES}, dict.fromkeys(NAMES, "no"))


def test_processes_that_are_lost_are_not_needed() -> None:
    others: list[Asked] = []
    started: Any = Started(Asked(others), Asked(others))  # type: ignore[arg-type]
    assert set(installed.ask(started, KERNELS, "sm90")().versions) == set(NAMES)
    (only,) = installed.ask(started, KERNELS[1:], "sm90")().versions
    assert only == NAMES[1] and others[0].names == [NAMES[0]], "there is no library to ask for"
