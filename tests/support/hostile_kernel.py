"""A kernel that does what its config says, when it is compiled or when it is checked.

What is raised in `variant` is raised in a compiler's process, and what is raised in `arguments` in
the interpreter's. A config that does nothing computes attention in `arguments`, with PyTorch, so it
passes the check; its device code copies one number, which compiles in a moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.sample_space import MODEL

RAISED = ("value_error", "key_error", "memory_error", "recursion", "system_exit", "keyboard")
"""The exceptions that code from kernels/ may raise, by the names that its config has for them."""

SOURCE = '''
import ctypes, os, subprocess, sys


def _stick():
    """Waits in C for a mutex that it holds itself, and holds the interpreter's lock: a signal
    neither ends the wait nor runs a handler of Python."""
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


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
    if what == "stuck":
        _stick()
    if what == "daemon":  # a process in a session of its own, whose parent ends
        subprocess.run(["sh", "-c", "setsid sleep 600 > /dev/null 2>&1 &"])
        _stick()
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
'''

DEVICE = """
import triton
import triton.language as tl


@triton.jit
def copy(source, target):
    tl.store(target, tl.load(source))
"""


def space(
    compiling: Sequence[str] = (),
    running: Sequence[str] = (),
    default: tuple[str, str] = ("nothing", "nothing"),
    copies: int = 1,
) -> str:
    """The text of a space with one config for each of these, and `copies` that do nothing.

    `default` is what the default config does when it is compiled and when it is run. `NAME` stands
    for the kernel's name.
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
  COPY:
    values: {list(range(copies))}
    doc: nothing
rules:
  one fault is enough: COMPILE == "nothing" or RUN == "nothing"
  faults are not repeated: COPY == 0 or COMPILE == "nothing" and RUN == "nothing"
defaults:
  - config: {{COMPILE: {default[0]}, RUN: {default[1]}, COPY: 0}}
{MODEL}"""
