"""The program that lowers Triton kernels to linalg, in the environment of triton-ascend.

It imports nothing of tunefa. Each line of standard input is a task, {source, function, signature,
constants, target} as JSON. For each task it writes a line to standard output: {ir} or {error}, the
error in the kernel. It does not use `triton.compile`, which needs CANN after the front end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from typing import Any

# An attribute that triton-ascend removes as well before it starts the compiler.
_MIX_MODE = re.compile(r', mix_mode\s*=\s*"[^"]*"')


def _lowered(task: dict[str, Any]) -> str:
    """Returns the kernel of a task as linalg, by the first two stages of triton-ascend."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    function = getattr(_module(task["source"]), task["function"])
    constants = task["constants"]
    signature = {**task["signature"], **dict.fromkeys(constants, "constexpr")}
    target = GPUTarget("npu", task["target"], 0)
    backend = make_backend(target)
    source = ASTSource(fn=function, signature=signature, constants=constants)
    options = backend.parse_options(dict(source.parse_options()))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    codegen = backend.get_codegen_implementation()
    module = source.make_ir(options, codegen, backend.get_module_map(), context)
    metadata = {"hash": source.hash(), "target": target, **options.__dict__}
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options)
    ttir = stages["ttir"](module, metadata)
    return _MIX_MODE.sub("", str(stages["ttadapter"](ttir, metadata)))


def _module(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None and spec.loader is not None  # a .py file
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _first_words(error: BaseException) -> str:
    """Returns the innermost cause in one line: Triton's own errors begin with the source code."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip("^ ")] or [""]
    telling = [line for line in lines if "error:" in line]
    return " ".join(f"{type(error).__name__}: {[*telling, lines[-1]][0]}".split())[:300]


def main() -> None:
    """Answers tasks until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that output of the front end is not taken for an answer
    for line in sys.stdin:
        try:
            made = {"ir": _lowered(json.loads(line))}
        except Exception as error:  # the front end's errors have no common class
            made = {"error": _first_words(error)}
        print(json.dumps(made), file=answers, flush=True)


if __name__ == "__main__":
    main()
