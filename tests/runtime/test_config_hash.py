"""tunefa/runtime/config_hash.py: equal where processes run equal configs, different otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tunefa
from tests.support import sample_bundles
from tests.support.made_here import OURS, made_here
from tests.support.processes import environment
from tunefa.compile import provenance
from tunefa.compile.serving import Installed
from tunefa.runtime import config_hash
from tunefa.runtime.lock_file import LockFile
from tunefa.runtime.process import Runtime
from tunefa.store import results as store
from tunefa.store.bundle_file import BundleFile
from tunefa.store.results import shipped_root

RECORDS = [made_here(), made_here("fwd_q8192")]


def parts(*records: Any, lock: LockFile | None = None, bundles: Any = ()) -> dict[str, str]:
    return config_hash.parts(lock, bundles, records, Installed())


def test_records_and_their_order_count() -> None:
    one, both = parts(RECORDS[0]), parts(*RECORDS)
    assert {name for name in one if one[name] != both[name]} == {"records"}
    assert config_hash.digest(one) != config_hash.digest(both)
    assert config_hash.digest(parts(*RECORDS)) == config_hash.digest(both)
    assert parts(*reversed(RECORDS))["records"] != both["records"]  # the first may win a tie


def test_records_that_do_not_serve_here_do_not_count() -> None:
    foreign = made_here("fwd_q512", {"source_hash": "0123"})
    assert parts(*RECORDS, foreign) == parts(*RECORDS)


def test_kernels_and_compilers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before, quick = parts(), provenance.quick

    def other(kernel: Any) -> dict[str, Any]:
        found = quick(kernel)
        return {**found, "triton": "9.9.9"} if kernel.name == OURS else found

    monkeypatch.setattr(provenance, "quick", other)
    after = config_hash.parts(None, [], [], Installed())
    assert "triton 9.9.9" in after[OURS] and "triton 9.9.9" not in before[OURS]
    assert {name for name in before if before[name] != after[name]} == {OURS}


def test_a_frozen_process_has_the_parts_of_its_file(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "a.lock.yaml", tuple(RECORDS))
    assert set(parts(lock=lock)) == {"lock file", OURS}
    assert parts(made_here("fwd_q512"), lock=lock) == parts(lock=lock)
    file = BundleFile(sample_bundles.write(tmp_path / "app.tunefa"))
    assert parts(lock=LockFile(file.path, (), file)) == {"lock file": file.digest[:16]}
    with_bundle = parts(bundles=[file])
    assert with_bundle["bundles"] != parts()["bundles"]


def test_processes_agree_and_notice_another_record(
    tmp_path: Path, fresh: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "shipped_root", shipped_root)  # another process has them too
    code = "import tunefa; print(tunefa.config_hash())"
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"  # other than this process's
    env = {**environment(tmp_path / "other"), "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True,
                          timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    own = tunefa.config_hash()
    assert len(own) == 16 and int(own, 16) >= 0 and done.stdout.strip() == own
    store.default_store().add(RECORDS[0])
    fresh.planner._records = None
    assert tunefa.config_hash() != own
