"""tunefa/sweep/installed.py: a worker knows what libraries say without loading PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import environment
from tunefa.compile import languages, provenance
from tunefa.compile.workers import ProcessLost, Workers
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.sweep import installed

NAMES = ("attention_fwd_cudnn", "attention_fwd_triton")
_WITHOUT_PYTORCH = """
import sys
from tests.support.sweeping import made, plan
from tunefa.compile.workers import Workers
from tunefa.search import resume
from tunefa.search.budget import Budget
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.sweep import versions
from tunefa.sweep.requests import Items, Requests
from pathlib import Path

asked = plan(targets=(), kernels=(), weights={Workload.parse("q512_d64"): 1.0})
items = Items.of(asked, [Target.named("h200")])
with Workers(1) as bench:
    here = versions.agree(made(Path(sys.argv[1]), asked), asked, items, bench)
assert "attention_fwd_cudnn" in here.versions
request = Requests(asked, "sweep", 1, here).of(items.items[0], Budget(trials=4))
held = resume.header(request)["provenance"]
for kernel in request.kernels:
    assert request.provenance(kernel)["date"] and kernel.name in held
print(sorted({"torch", "triton"} & set(sys.modules)), len(request.kernels))
"""


def test_a_search_of_a_sweep_loads_no_pytorch(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PYTORCH, str(tmp_path)],
        env=environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.startswith("[] ") and int(found.stdout.split()[-1]) > 1


def test_it_is_what_this_process_finds_too() -> None:
    with Workers(1) as bench:
        found = installed.seen_by(bench, NAMES, "sm90")
    asked = [kernels.load(name) for name in NAMES]
    for kernel in asked:
        both = [{**each, "date": ""} for each in (found.versions[kernel.name],
                                                  provenance.of(kernel))]  # fmt: skip
        assert both[0] == both[1]
    assert found.lacking == languages.without_compiler(asked, Target.named("sm90").arch)


def test_a_bench_that_is_lost_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(*task: Any) -> Any:
        raise ProcessLost("died with exit code -11")

    with Workers(1) as bench:
        monkeypatch.setattr(bench, "submit", submit)
        assert set(installed.seen_by(bench, NAMES, "sm90").versions) == set(NAMES)
