"""tunefa/cli/sweep.py: the command, with the fake objective in its workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.processes import environment
from tests.support.sweeping import KERNEL, fake_work
from tunefa.cli import sweep, targets
from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import SeenDevice
from tunefa.errors import TunefaError
from tunefa.spec.workload import Workload
from tunefa.sweep import engines, study
from tunefa.sweep.plan import Plan
from tunefa.sweep.start import work

WORDS = ("--arch", "sm90", "--kernel", KERNEL, "--strategy", "random", "--workers", "2")
FILE = """workloads:
- {workload: q512_h8_kv2_d64, weight: 2}
- {workload: q256_h8_kv2_d64, weight: 1}
"""


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    real = engines.create
    assert real.__defaults__ == (work,)
    monkeypatch.setattr(engines, "create", lambda name, **how: real(name, fake_work, **how))
    Path("w.yaml").write_text(FILE)


def test_a_sweep_and_its_continuation(run: Run) -> None:
    first = json.loads(run("sweep", "w.yaml", *WORDS, "--budget", "24", "--json").stdout)
    assert first["weight"] == 3.0 and first["saved"] > 0 and first["budget"]["trials"] == 24
    assert [each["weight"] for each in first["workloads"]] == [2.0, 1.0]
    assert all(each["best_us"] and each["config"] for each in first["workloads"])
    assert first["course"][-1]["saved"] == first["saved"]
    again = run("sweep", "w.yaml", *WORDS, "--budget", "40", "--resume", "--json")
    assert f"Continuing {first['study']}" in again.stderr
    second = json.loads(again.stdout)
    assert second["study"] == first["study"] and 36 < second["spent"] <= 40
    before = {each["workload"]: each["trials"] for each in first["workloads"]}
    assert sum(each["trials"] - before[each["workload"]] for each in second["workloads"]) >= 12
    new = run("sweep", "w.yaml", *WORDS, "--seed", "1", "--budget", "8", "--resume")
    assert "no sweep of these workloads, weights, chips and options" in new.stderr
    assert "PREDICTED" in new.stdout and "Left on the table" in new.stdout


def test_no_gpu_and_none_of_that_name(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "devices", lambda: [])
    assert "has no GPU to measure on" in run("sweep", "w.yaml", code=1).stderr
    there = [SeenDevice("NVIDIA H200", (9, 0), 132, 2**37)]
    monkeypatch.setattr(driver, "devices", lambda: there)
    told = run("sweep", "w.yaml", "--device", "b200", code=1).stderr
    assert "no GPU of this machine is a NVIDIA B200; there are: NVIDIA H200" in told
    assert not study.folder().exists()


_BEGINS = """
import sys
from tunefa import cli
from tunefa.compile.launch import driver
from tunefa.errors import TunefaError
from tunefa.sweep.engines import local

def begin(engine, plan):
    slow = {"optuna", "numpy", "sqlalchemy", "torch"} & set(sys.modules)
    raise TunefaError(f"begun after {sorted(slow)}, measured: {plan.measured}")

driver.devices = lambda: [driver.SeenDevice("NVIDIA H200", (9, 0), 132, 2**37)]
local.Engine.begin = begin
sys.argv = ["tunefa", "sweep", "w.yaml"]
cli.main()
"""


def test_its_processes_begin_before_it_loads_what_takes_long(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", _BEGINS],
        env=environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "begun after [], measured: True" in found.stderr, found.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("w.yaml", "--arch", "sm9"), 1, "unknown"),
        (("w.yaml", "--arch", "ascend910b3"), 1, "NPU"),
        (("w.yaml", "--arch", "sm90", "--device", "h200"), 2, "leave out one"),
        (("w.yaml", "--arch", "sm90", "--on", "cloud"), 1, "unknown engine 'cloud'"),
        (("w.yaml", "--arch", "sm90", "--hosts", "2"), 2, "--hosts is for --on slurm"),
        (("w.yaml", "--arch", "sm90", "--strategy", "x"), 1, "strategy"),
        (("w.yaml", "--arch", "sm90", "--kernel", "x"), 1, "unknown kernel"),
        (("w.yaml", "--arch", "sm90", "--budget", "soon"), 1, "neither a time nor"),
        (("w.yaml", "--arch", "sm90", "--storage", "postgresql://u:pw@127.0.0.1:1/x"), 1, "opened"),
        (("gone.yaml", "--arch", "sm90"), 1, "gone.yaml"),
        (("--arch", "sm90"), 2, "in one way"),
        (("w.yaml", "--join"), 2, "--join takes the workloads from the sweep"),
        (("--join",), 1, "there is no sweep in"),
        (("-w", "bwd_q512_d64", "--arch", "sm80", "--kernel", KERNEL), 1, "no kernel serves"),
    ],
)
def test_mistakes_are_said_in_a_sentence(
    words: tuple[str, ...], code: int, says: str, run: Run
) -> None:
    told = run("sweep", *words, code=code).stderr
    assert says in told and "Traceback" not in told and "pw@" not in told


def test_the_fewest_sms_of_what_a_sweep_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [SeenDevice(name, (9, 0), sms, 2**37) for name, sms in (("H200", 132), ("H20", 78))]
    monkeypatch.setattr(targets, "seen", lambda: there)
    assert sweep._fewest_sms((), None) == 78
    assert sweep._fewest_sms(("h200", "sm80"), None) == 108
    assert sweep._fewest_sms((), "NVIDIA H200") == 132
    there.clear()
    assert sweep._fewest_sms((), None) == 108, "an A100's"


def test_an_npu_is_refused_by_name(run: Run) -> None:
    for words in (("--device", "ascend910b3"), ("--arch", "ascend910b3")):
        said = run("sweep", "-w", "b1_q1_k4096", *words, code=1).stderr
        assert "which a sweep does not know: tunefa search does" in said


def test_workloads_over_a_cache_are_one_search(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []

    def swept(plan: Plan, how: object) -> None:
        plans.append(plan)
        raise TunefaError("that is all")

    monkeypatch.setattr(sweep, "_swept", swept)
    words = ("-w", "decode_b1_k1024", "-w", "decode_b8_k4096", "-w", "b1_q1_k4096", "-w", "q512")
    said = run("sweep", *words, "--arch", "sm90", code=1).stderr
    usual = Workload.parse("decode_b16_k8192")
    assert plans[0].weights == {usual: 3.0, Workload.parse("q512"): 1.0}
    assert said.count(f"searched as {usual}") == 2
    run("sweep", *words, "--arch", "sm90", "--kernel", "attention_fwd_triton", code=1)
    assert Workload.parse("b1_q1_k4096") in plans[1].weights
