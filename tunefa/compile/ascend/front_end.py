"""Triton to linalg, by triton-ascend in its own environment."""

from __future__ import annotations

import functools
import json
import os
import select
import subprocess
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefa.compile.ascend.sidecar import Sidecar
from tunefa.spec.arch import NpuArch
from tunefa.spec.kernel import Kernel

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

    @classmethod
    def of(cls, kernel: Kernel, variant: Mapping[str, Any], arch: NpuArch) -> Task:
        """Of what the kernel's `variant` says."""
        return cls(
            source=kernel.source.parent / variant["source"],
            source_hash=kernel.source_hash,
            function=variant["function"],
            signature=tuple(variant["signature"].items()),
            constants=tuple(variant["constants"].items()),
            target=arch.target,
        )


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
    try:
        answer = _running(sidecar.python).ask(question)
    except FrontEndError:
        _running.cache_clear()  # the next kernel gets another
        raise
    if "error" in answer:
        raise FrontEndError(answer["error"])
    return str(answer["ir"])


class _FrontEnd:
    """triton-ascend at work: to import it takes longer than to lower a kernel."""

    def __init__(self, python: Path) -> None:
        # Nothing of this process's own Triton may reach that one.
        hidden = ("PYTHONPATH", "PYTHONHOME", "TRITON_INTERPRET", "TRITON_KERNEL_OVERRIDE")
        environment = {key: value for key, value in os.environ.items() if key not in hidden}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the object
        self._process = subprocess.Popen(
            [python, "-I", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        weakref.finalize(self, self._process.kill)

    def ask(self, question: str) -> dict[str, str]:
        """The answer to one task. Raises FrontEndError where none comes; then it is of no use."""
        told, says = self._process.stdin, self._process.stdout
        assert told is not None and says is not None
        try:
            told.write(f"{question}\n".encode())
            told.flush()
        except BrokenPipeError as error:
            raise self._dead() from error
        if not select.select([says], [], [], LIMIT_S)[0]:
            self._process.kill()
            raise FrontEndError(f"the front end took over {LIMIT_S:.0f} s")
        line = says.readline()
        if not line.endswith(b"\n"):
            raise self._dead()
        answer: dict[str, str] = json.loads(line)
        return answer

    def _dead(self) -> FrontEndError:
        """In its last words."""
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines() or [""]
        return FrontEndError(f"the front end died with exit code {code}: {lines[-1]}"[:300])


@functools.cache  # of one Python there is; `lowered` lets go of one that died
def _running(python: Path) -> _FrontEnd:
    return _FrontEnd(python)
