"""tunefa sweep on the GPU: killed once, continued, every record certified."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.tree import TREE
from tunefa.spec.trial import identity
from tunefa.store import journal
from tunefa.store.results import Store

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

FILE = """workloads:
- {workload: fwd_b4_h16_kv16_q2048_k2048_d128_bf16_causal, weight: 3}
- {workload: bwd_b2_h16_kv16_q2048_k2048_d128_bf16_causal, weight: 6}
- {workload: decode_b8_h32_kv8_q1_k8192_d128_bf16, weight: 1}
"""
BUDGET = "100s"


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tunefa", "sweep", str(home / "w.yaml"), "--budget", BUDGET,
               "--json", *words]  # fmt: skip
    environment = {**os.environ, "TUNEFA_HOME": str(home)}
    return subprocess.Popen(command, cwd=TREE, env=environment, stdout=subprocess.PIPE, text=True)


def finished(home: Path) -> set[tuple[str, str, tuple[object, ...]]]:
    found = set()
    for path in (home / "journals").glob("*.jsonl"):
        if held := journal.header(path):
            trials = journal.read(path)
            found |= {(held["workload"], name, identity(t.config)) for name, t in trials}
    return found


def test_killed_and_continued(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(FILE)
    process = start(tmp_path)
    until = time.monotonic() + 90
    while not list((tmp_path / "results").rglob("*.yaml")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.2)
    time.sleep(6.0)  # into the second workload
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = finished(tmp_path)
    with start(tmp_path, "--resume") as process:
        out, _ = process.communicate(timeout=200)
    told = json.loads(out)
    assert before and before <= finished(tmp_path)
    assert all(each["best_us"] for each in told["workloads"]) and not told["errors"]
    assert told["spent"] < 100 + 15 and told["saved"] >= 0.0
    records = Store([tmp_path / "results"]).records()
    assert len({record.workload for record in records}) == 3
    for record in records:
        assert record.objective == "measured" and record.certificate is not None
        assert record.provenance["check"].endswith("on the device")
    print(json.dumps(told, indent=1))
