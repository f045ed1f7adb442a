"""Lowers a Triton kernel to linalg with triton-ascend: a program of its own, for its environment.

It imports nothing of tunefa's. Each line on standard input is {source, function, signature,
constants, target} as JSON; a line on standard output answers it with {ir} or {error}, which is what
is wrong with the kernel. `triton.compile` is no way to do it: behind the front end it wants CANN.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from typing import Any

# triton-ascend itself removes it before it starts the compiler.
_MIX_MODE = re.compile(r', mix_mode\s*=\s*"[^"]*"')


def _lowered(task: dict[str, Any]) -> str:
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
    """The innermost cause, in one line: Triton's own errors begin with the place in the source."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip("^ ")] or [""]
    telling = [line for line in lines if "error:" in line]
    return " ".join(f"{type(error).__name__}: {[*telling, lines[-1]][0]}".split())[:300]


def main() -> None:
    """Answers until there are no more tasks."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the front end prints is no answer
    for line in sys.stdin:
        try:
            made = {"ir": _lowered(json.loads(line))}
        except Exception as error:  # the front end's failures have no common class
            made = {"error": _first_words(error)}
        print(json.dumps(made), file=answers, flush=True)


if __name__ == "__main__":
    main()
