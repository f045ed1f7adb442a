"""A kernel that does what its config says, when it is compiled or when it is checked.

What is raised in `variant` is raised in a compiler's process, and what is raised in `arguments` in
the interpreter's. A config that does nothing computes attention in `arguments`, with PyTorch, so it
passes the check; its device code copies one number, which compiles in a moment.
"""

from __future__ import annotations

from tests.support.sample_space import MODEL

RAISED = ("value_error", "key_error", "memory_error", "recursion", "system_exit", "keyboard")
"""What code from kernels/ may raise, by the names that its config has for it."""

SOURCE = """
import ctypes, os, subprocess, sys


def _do(what):
    if what == "value_error":
        raise ValueError("this config is told to fail")
    if what == "key_error":
        return {}["BLOCK_Q"]
    if what == "memory_error":
        raise MemoryError
    if what == "recursion":
        return _do(what)
    if what == "system_exit":
        sys.exit("bye")
    if what == "keyboard":
        raise KeyboardInterrupt
    if what == "import":
        import no_such_module
    if what == "exit_zero":
        os._exit(0)
    if what == "memory":
        held = []
        while True:
            held.append(b"x" * 2**26)
    if what == "stuck":  # in C, with the interpreter's lock: no signal handler of Python runs
        ctypes.PyDLL(None).sleep(600)
    if what == "daemon":  # a process in a session of its own, whose parent ends
        subprocess.run(["sh", "-c", "setsid sleep 600 > /dev/null 2>&1 &"])
        ctypes.PyDLL(None).sleep(600)
    if what == "print":
        print("from Python")
        os.write(1, b"from C\\n")
        subprocess.run(["echo", "from a child"])


def variant(workload, config, aligned=True):
    _do(config["COMPILE"])

    def function():
        if config["COMPILE"] == "device_import":
            import no_such_module
        from tunefa.kernels.triton.NAME_device import copy

        return copy

    return {
        "function": function,
        "signature": {"source": "*fp32", "target": "*fp32"},
        "constants": {},
        "aligned": ["source", "target"],
        "options": {"num_warps": 1},
    }


def arguments(tensors, spec):
    import torch

    _do(spec.config["RUN"])
    q, k, v, out, lse = tensors
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1).double(), v.repeat_interleave(group, 1).double()
    scores = spec.scale * q.double() @ k.transpose(2, 3)
    seen = torch.ones(scores.shape[2:], dtype=torch.bool)
    if spec.workload.causal:
        seen = seen.tril(k.shape[2] - q.shape[2])
    scores = scores.masked_fill(~seen, float("-inf"))
    lse.copy_(scores.logsumexp(-1))
    out.copy_(scores.softmax(-1) @ v)
    return (1, 1, 1), [torch.zeros(1), torch.zeros(1)]


def is_aligned(tensors):
    return True
"""

DEVICE = """
import triton
import triton.language as tl


@triton.jit
def copy(source, target):
    tl.store(target, tl.load(source))
"""


def space(compiling: tuple[str, ...] = (), running: tuple[str, ...] = ()) -> str:
    """The text of a space with one config for each of these, and one that does nothing.

    `NAME` stands for the kernel's name.
    """
    return f"""\
schema: 2
kernel: NAME
op: fwd
language: triton
parameters:
  COMPILE:
    values: [{", ".join(("nothing", *compiling))}]
    doc: what becomes of the process that compiles it
  RUN:
    values: [{", ".join(("nothing", *running))}]
    doc: what becomes of the process that runs it
rules:
  one fault is enough: COMPILE == "nothing" or RUN == "nothing"
defaults:
  - config: {{COMPILE: nothing, RUN: nothing}}
{MODEL}"""
