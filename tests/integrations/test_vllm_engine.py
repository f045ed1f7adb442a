"""vLLM's own engine on the CPU, with its own attention and with tunefa's: where vLLM is there."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tree import TREE
from tests.support.vllm_engine import MODELS, PROMPTS, STEPS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
ENTRY = "[vllm.general_plugins]\ntunefa = tunefa.integrations.vllm:register\n"


def generated(name: str, backend: str, folder: Path) -> Any:
    """What the engine prints, in a process of its own where tunefa is installed as a plugin."""
    info = folder / "site" / "tunefa_plugin_under_test-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tunefa-under-test\nVersion: 0\n")
    (info / "entry_points.txt").write_text(ENTRY)
    env = {**os.environ, "PYTHONPATH": f"{folder / 'site'}{os.pathsep}{TREE}"}
    command = [sys.executable, "-m", "tests.support.vllm_engine", name, backend, str(folder / name)]
    done = subprocess.run(command, cwd=TREE, env=env, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert done.returncode == 0 and lines, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(lines[-1].removeprefix("FOUND "))


@pytest.mark.parametrize("name", MODELS)
def test_the_engine_gives_the_same_tokens(name: str, tmp_path: Path) -> None:
    right, found = (generated(name, backend, tmp_path) for backend in ("CPU_ATTN", "TUNEFA"))
    assert found["classes"] == ["TunefaImpl"] and "TunefaImpl" not in right["classes"]
    assert found["tokens"] == right["tokens"]
    assert [len(each) for each in found["tokens"]] == [STEPS] * len(PROMPTS)
    assert len({token for each in found["tokens"] for token in each}) > STEPS
    for ours, theirs in zip(found["logprobs"], right["logprobs"], strict=True):
        assert ours == pytest.approx(theirs, abs=0.05)
