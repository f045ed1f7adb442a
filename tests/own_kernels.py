"""Kernels that a test writes for itself, in place of those tunefa ships.

`tunefa.assets.root` says where kernels are, and replacing it is enough in this process. Processes
that are spawned import everything afresh, so a replaced function is not replaced there; and an
environment variable that moved the folders would be a door in the package for tests only. But
spawned processes are told by name which function to call: so the functions that `compile_pool` and
`check` send to theirs are replaced by `there`, which moves `assets.root` in the process it runs in
and then calls the one that was meant.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.sample_space import MODEL
from tunefa import assets, check, compile_pool
from tunefa import kernel as kernels
from tunefa.kernel import Kernel

TREE = Path(__file__).resolve().parent.parent
ATTENTION = "attention_fwd_triton"


class OwnKernels:
    """Folders `kernels`, `search_spaces` and `results` in place of tunefa's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        for name in assets.FOLDERS:
            (folder / name).mkdir(parents=True)
        monkeypatch.setattr(assets, "root", partial(_root, str(folder)))
        for module, name in ((compile_pool, "_compile"), (check, "_interpret")):
            sent = partial(there, str(folder), module.__name__, name)
            monkeypatch.setattr(module, name, sent)

    def add(self, name: str, source: str, space: str) -> Kernel:
        """A kernel of that name. `space` says `NAME` where the kernel's name belongs.

        Modules are remembered by name for the whole process: no two tests may share one.
        """
        (self.folder / "kernels" / f"{name}.py").write_text(source, encoding="utf-8")
        space_file = self.folder / "search_spaces" / f"{name}.yaml"
        space_file.write_text(space.replace("NAME", name), encoding="utf-8")
        return kernels.load(name)

    def add_attention(
        self, name: str, change: Callable[[str], str] = str, space: Callable[[str], str] = str
    ) -> Kernel:
        """tunefa's own attention kernel under another name, its source and space changed."""
        source = (TREE / "kernels" / f"{ATTENTION}.py").read_text(encoding="utf-8")
        text = (TREE / "search_spaces" / f"{ATTENTION}.yaml").read_text(encoding="utf-8")
        text = text.replace(f"kernel: {ATTENTION}", "kernel: NAME")
        return self.add(name, change(source), space(text))

    def add_broken(self, name: str) -> None:
        """Adds a kernel whose space cannot be read."""
        self.add_attention(name)
        (self.folder / "search_spaces" / f"{name}.yaml").write_text("schema: 1\nrules: [")

    def copy_of_tunefa(self) -> None:
        """Adds everything that tunefa ships."""
        for name in assets.FOLDERS:
            shutil.copytree(TREE / name, self.folder / name, dirs_exist_ok=True)


def there(folder: str, module: str, name: str, *args: Any) -> Any:
    """Calls a function of a module in a process where `folder` holds the data folders."""
    assets.root = partial(_root, folder)
    return getattr(importlib.import_module(module), name)(*args)


def _root(folder: str, name: str) -> Path:
    return Path(folder, name)


FAULTY_SPACE = f"""\
schema: 1
kernel: NAME
op: fwd
language: triton
parameters:
  FAULT:
    values: [none, error, exit, segfault, hang, noise]
    doc: what becomes of the process that compiles it
defaults:
  - config: {{FAULT: none}}
{MODEL}"""

FAULTY_SOURCE = """
import os, signal, subprocess, sys
import triton
import triton.language as tl


@triton.jit
def copy(source, target, FAULT: tl.constexpr):
    tl.static_assert(FAULT != "error", "this config is told to fail")
    tl.store(target, tl.load(source))


def variant(workload, config, aligned=True):
    fault = config["FAULT"]
    if fault == "exit":
        os._exit(7)
    if fault == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang":  # like a ptxas that does not end: a child of the process that compiles
        subprocess.run(["sleep", "600"])
    if fault == "noise":
        print("from Python")
        os.write(2, b"from MLIR\\n")
    return {
        "function": copy,
        "signature": {"source": "*fp32", "target": "*fp32", "FAULT": "constexpr"},
        "constants": {"FAULT": fault},
        "aligned": ["source", "target"],
        "options": {"num_warps": 1},
    }
"""
"""A copy of one number: it compiles at once, unless its config says how to fail."""
