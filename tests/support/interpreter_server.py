"""A process that has imported PyTorch and Triton, in Triton's interpreter, and forks for each
program that a test runs there: importing both takes 3 s.

Reads a `Request` in JSON a line, and answers with the exit status of the program, a line each.
TRITON_INTERPRET=1 must be set.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import traceback
from typing import NamedTuple

from tests.support.tree import TREE


class Request(NamedTuple):
    """A program: a module that runs as `__main__`, or code."""

    module: str
    """Empty for code."""
    code: str
    environment: dict[str, str]
    output: str
    """The files for standard output and standard error."""
    errors: str


def started() -> subprocess.Popen[str]:
    """A server, which ends when its standard input does: with this process, at the latest."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=TREE,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # with what it forks, so that both can be killed
    )


def main() -> None:
    """Answers until standard input ends."""
    from tests.support import triton_interpreter

    triton_interpreter.prepare()
    import torch  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if not child:
            _run(Request(*json.loads(line)))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run(request: Request) -> None:
    """Runs the program in this process, which ends."""
    for descriptor, path in enumerate((os.devnull, request.output, request.errors)):
        file = os.open(path, os.O_RDWR)
        os.dup2(file, descriptor)
    os.environ.clear()
    os.environ.update(request.environment)
    status = 1
    try:
        if request.module:
            runpy.run_module(request.module, run_name="__main__", alter_sys=True)
        else:
            exec(compile(request.code, "<code>", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
