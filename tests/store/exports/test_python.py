"""tunefa/store/exports/python.py: a module that needs nothing but Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sample_exports import FAST, GUESS, OF_SM80, Q4096, Q8192, SLOW, evaluate
from tests.support.sample_records import CONFIG, records
from tunefa.store import exports
from tunefa.store.record import Record


@settings(deadline=None)
@given(some=st.lists(records(), max_size=3))
def test_python_module_keeps_every_value(some: list[Record]) -> None:
    kept = evaluate(exports.get("python").dump(some))["RECORDS"]
    ranked = sorted(some, key=lambda record: record.rank)
    assert [entry["config"] for entry in kept] == [record.config for record in ranked]


def test_python_module_serves_configs() -> None:
    config_for = evaluate(exports.get("python").dump([SLOW, GUESS, FAST]))["config_for"]
    assert config_for(Q4096) == CONFIG
    assert config_for(Q4096, "sm90") == CONFIG
    config_for(Q4096)["BLOCK_M"] = 1
    assert config_for(Q4096) == CONFIG
    with pytest.raises(LookupError, match=r"there are configs for: .*q4096.*, .*q8192"):
        config_for("fwd_q1")
    with pytest.raises(LookupError, match="on 'sm80'"):
        config_for(Q4096, "sm80")


def test_a_workload_of_two_chips_asks_which() -> None:
    config_for = evaluate(exports.get("python").dump([FAST, GUESS, OF_SM80]))["config_for"]
    with pytest.raises(LookupError, match="has configs for sm80, sm90: name one as arch"):
        config_for(Q8192)
    assert config_for(Q8192, "sm80") == OF_SM80.config
    assert config_for(Q8192, arch="sm90") == GUESS.config
    assert config_for(Q4096) == FAST.config


def test_python_module_runs_without_site_packages(tmp_path: Path) -> None:
    module = tmp_path / "best.py"
    module.write_text(exports.get("python").dump([FAST]))
    code = f"import best; assert best.config_for({Q4096!r})['BLOCK_M'] == 128"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-S", "-c", code], check=True, env=environment)
