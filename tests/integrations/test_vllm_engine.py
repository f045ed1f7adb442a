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
from tests.support.vllm_engine import DTYPES, MODELS, PROMPTS, STEPS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
ENTRY = "[vllm.general_plugins]\ntunefa = tunefa.integrations.vllm:register\n"


def generated(name: str, backend: str, folder: Path) -> Any:
    """The output of the engine, in a process of its own where tunefa is installed as a plugin."""
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
    assert len({token for each in found["tokens"] for token in each}) > len(PROMPTS)
    for ours, theirs in zip(found["logprobs"], right["logprobs"], strict=True):
        for mine, same in zip(ours, theirs, strict=True):
            assert mine == pytest.approx(same, abs=0.02 if DTYPES[name] == "float16" else 0.1)


def test_what_is_not_served_is_said_by_vllm(tmp_path: Path) -> None:
    """By vLLM's own check of a backend, with its names."""
    code = """
import torch
from vllm.platforms.interface import DeviceCapability
from tunefa.integrations.vllm_backend import TunefaBackend
usual = {"head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 16,
         "use_mla": False, "has_sink": True, "use_sparse": False, "use_mm_prefix": False,
         "use_per_head_quant_scales": False, "device_capability": DeviceCapability(9, 0),
         "attn_type": "decoder", "has_sliding_window": True}
for other in ({}, {"head_size": 260}, {"dtype": torch.float32}, {"kv_cache_dtype": "fp8_e5m2"},
              {"block_size": 8}, {"use_mla": True}, {"device_capability": DeviceCapability(7, 5)},
              {"attn_type": "encoder_only"}, {"use_non_causal": True}):
    print("FOUND", TunefaBackend.validate_configuration(**usual | other))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=TREE, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines == [
        "FOUND []",
        "FOUND ['head_size not supported']",
        "FOUND ['dtype not supported']",
        "FOUND ['kv_cache_dtype not supported']",
        "FOUND ['block_size not supported']",
        "FOUND ['MLA not supported']",
        "FOUND ['compute capability not supported']",
        "FOUND ['attention type encoder_only not supported']",
        "FOUND ['non-causal attention not supported']",
    ], done.stderr[-3000:]


def test_processes_that_vllm_spawns_read_the_backend(tmp_path: Path) -> None:
    """vLLM pickles its configuration, and such a process has loaded no plugin when it reads it."""
    sent = tmp_path / "sent"
    write = f"""
import pickle
from tunefa.integrations.vllm import register
register()
from vllm.v1.attention.backends.registry import AttentionBackendEnum
pickle.dump(AttentionBackendEnum["TUNEFA"], open({str(sent)!r}, "wb"))
"""
    read = f"import pickle\nprint('FOUND', pickle.load(open({str(sent)!r}, 'rb')).name)"
    for code in (write, read):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=TREE, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    assert "FOUND TUNEFA" in done.stdout
