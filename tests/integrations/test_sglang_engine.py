"""SGLang with the plugin, in a process of its own; needs SGLang."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tree import TREE

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"
)
ENTRY = "[sglang.srt.plugins]\ntunefa_under_test = tunefa.integrations.sglang:register\n"
START = """
from types import SimpleNamespace
from tests.support.sglang_stand_ins import PLACES, define_operators_of_torchvision
define_operators_of_torchvision()
"""
LOADED = """
from sglang.srt.plugins import load_plugins
load_plugins()
"""


def said(code: str, folder: Path, **more: str) -> str:
    """Returns what SGLang says in a process where tunefa is installed as a plugin."""
    info = folder / "tunefa_plugin_under_test-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tunefa-under-test\nVersion: 0\n")
    (info / "entry_points.txt").write_text(ENTRY)
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{TREE}", **more}
    command = [sys.executable, "-c", START + code]
    done = subprocess.run(command, cwd=TREE, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_sglang_finds_the_plugin_and_takes_its_name(tmp_path: Path) -> None:
    code = """
import argparse
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
given = parser.parse_args(["--model-path", "x", "--attention-backend", "tunefa"])
print("FOUND", given.attention_backend)
"""
    assert "FOUND tunefa\n" in said(LOADED + code, tmp_path, SGLANG_PLUGINS="tunefa_under_test")


def test_sglang_makes_the_backend(tmp_path: Path) -> None:
    """By the function that SGLang's ModelRunner calls."""
    code = """
import torch
from sglang.srt.model_executor.model_runner_components import attention_backend_setup as setup
from sglang.srt.runtime_context import get_parallel
from importlib import import_module
from tests.support.sglang_batches import PLAIN, Step
from tests.support.vllm_batches import SMALL
names = {name: getattr(import_module(path), name) for name, path in PLACES.items()}
step = Step(SimpleNamespace(**names), ((1, 9),), "DECODE", SMALL, PLAIN)
with get_parallel().override(attn_cp_size=1, attn_dcp_size=1):
    made = setup._build_full_attention_backend_from_str(
        model_runner=step.runner, backend_str="tunefa", init_new_workspace=False
    )
    print("FOUND", type(made).__name__, made.needs_cpu_seq_lens)
"""
    assert "FOUND TunefaBackend True\n" in said(LOADED + code, tmp_path)


def test_a_plugin_that_fails_does_not_keep_sglang_from_starting(tmp_path: Path) -> None:
    code = (
        """
import sys
sys.modules["sglang.srt.layers.attention.attention_registry"] = None
"""
        + LOADED
        + "print('FOUND', 'started')\n"
    )
    assert "FOUND started\n" in said(code, tmp_path)


def test_it_computes_what_sglangs_own_backend_computes(tmp_path: Path) -> None:
    """SGLang's `torch_native`, which counts a layer's window and a batch's keys in its own way."""
    code = """
from importlib import import_module
import torch
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.runtime_context import get_parallel
from tests.support.sglang_batches import PLAIN, Step
from tests.support.vllm_batches import SMALL
names = {name: getattr(import_module(path), name) for name, path in PLACES.items()}
batches = {"EXTEND": ((7, 7), (20, 50), (1, 17)), "DECODE": ((1, 9), (1, 40), (1, 1))}
for mode, lengths in batches.items():
    for given in ({}, {"sliding_window_size": 5}):
        step = Step(SimpleNamespace(**names), lengths, mode, SMALL, PLAIN)
        layer = step.layer(**given)
        with get_parallel().override(attn_cp_size=1, attn_dcp_size=1):
            ours, theirs = (
                step.run(ATTENTION_BACKENDS[name](step.runner), layer)
                for name in ("tunefa", "torch_native")
            )
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
        print("FOUND", mode, len(ours))
"""
    found = [line for line in said(LOADED + code, tmp_path).splitlines() if "FOUND" in line]
    assert found == ["FOUND EXTEND 28"] * 2 + ["FOUND DECODE 3"] * 2
