"""The front end: triton-ascend, in its own environment, lowers Triton kernels to linalg."""

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

from tunefa.compile.ascend.toolchain import Toolchain
from tunefa.spec.arch import NpuArch
from tunefa.spec.kernel import Kernel

_PROGRAM = Path(__file__).with_name("front_end_process.py")
LIMIT_S = 60.0
"""The time limit of one kernel. An attention kernel takes 0.1 s, after 0.2 s for imports."""


class FrontEndError(Exception):
    """The front end refuses a kernel. The message is the front end's."""


@dataclass(frozen=True)
class Task:
    """One kernel with its constants, which the front end is to lower."""

    source: Path
    source_hash: str
    function: str
    signature: tuple[tuple[str, str], ...]
    """(argument, type), with types as in Triton: "*fp16", "i32"."""
    constants: tuple[tuple[str, object], ...]
    target: str

    @classmethod
    def of(cls, kernel: Kernel, variant: Mapping[str, Any], arch: NpuArch) -> Task:
        """Returns the task for a `variant` of a kernel."""
        return cls(
            source=kernel.source.parent / variant["source"],
            source_hash=kernel.source_hash,
            function=variant["function"],
            signature=tuple(variant["signature"].items()),
            constants=tuple(variant["constants"].items()),
            target=arch.compiler_target,
        )


@functools.lru_cache(maxsize=256)  # configs that differ only in flags of the back end share it
def lowered(tools: Toolchain, task: Task) -> str:
    """Returns the kernel as linalg, for `back_end.compile`.

    Raises FrontEndError if the front end refuses it, dies or exceeds the time limit.
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
        answer = _running(tools.python).ask(question)
    except FrontEndError:
        _running.cache_clear()  # the next kernel starts another process
        raise
    if "error" in answer:
        raise FrontEndError(answer["error"])
    return str(answer["ir"])


class _FrontEnd:
    """A process that lowers one kernel after the other: importing triton-ascend is slow."""

    def __init__(self, python: Path) -> None:
        # The process must not see the settings of this process's own Triton.
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
        """Returns the answer to one task.

        Raises FrontEndError if there is none; then the process cannot be used again.
        """
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
        """Returns the error for a process that died, with its last line of output."""
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines() or [""]
        return FrontEndError(f"the front end died with exit code {code}: {lines[-1]}"[:300])


@functools.cache  # one process for each Python; `lowered` drops one that died
def _running(python: Path) -> _FrontEnd:
    return _FrontEnd(python)
