"""Triton to linalg, by triton-ascend in its own environment."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tunefa.ascend.sidecar import Sidecar

_PROGRAM = Path(__file__).with_name("front_end_process.py")
# A thread's time: 0.2 s to import, 0.1 s to lower an attention kernel.
LIMIT_S = 60.0


class FrontEndError(Exception):
    """A kernel that the front end does not take, in its words."""


@dataclass(frozen=True)
class Task:
    """One kernel with its constants, to be lowered."""

    source: Path
    source_hash: str
    function: str
    signature: tuple[tuple[str, str], ...]
    """Type by argument, as Triton writes it: "*fp16", "i32"."""
    constants: tuple[tuple[str, object], ...]
    target: str


@functools.lru_cache(maxsize=256)  # the compiler's own flags leave it as it is
def lowered(sidecar: Sidecar, task: Task) -> str:
    """The kernel as linalg, which `back_end` takes.

    Raises FrontEndError where the front end refuses it, dies or takes too long.
    """
    question = json.dumps(
        {
            "source": str(task.source),
            "function": task.function,
            "signature": dict(task.signature),
            "constants": dict(task.constants),
            "target": task.target,
        }
    )
    # Nothing of this process's own Triton may reach that one.
    hidden = ("PYTHONPATH", "PYTHONHOME", "TRITON_INTERPRET", "TRITON_KERNEL_OVERRIDE")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    try:
        done = subprocess.run(
            [sidecar.python, "-I", _PROGRAM],
            input=question,
            capture_output=True,
            text=True,
            env=environment,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise FrontEndError(f"the front end took over {LIMIT_S:.0f} s") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        said = f"the front end died with exit code {done.returncode}: {last}"
        raise FrontEndError(said[:300]) from error
    if "error" in answer:
        raise FrontEndError(answer["error"])
    return str(answer["ir"])
