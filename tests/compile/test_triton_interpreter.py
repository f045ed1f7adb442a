"""tunefa/compile/triton_interpreter.py: the interpreter is quicker, and computes the same bits."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.tree import TREE
from tunefa.compile import languages

CODE = """
import torch
from triton.runtime import interpreter
from tunefa.compile import triton_interpreter
from tunefa.compile.launch.interpreted import steps
from tunefa.compile.launch.triton_launch import for_triton
from tunefa.measure import ops
from tunefa.spec.target import Case

calls = []
made_types, patch = interpreter.tl.core.block_type.__init__, interpreter._patch_lang

def counted(self, *arguments):
    calls.append("type")
    made_types(self, *arguments)

def patched(function):
    calls.append("patch")
    return patch(function)

interpreter.tl.core.block_type.__init__, interpreter._patch_lang = counted, patched

def ran(text):
    case = Case.from_names("attention_fwd_triton", text, "sm90")
    op = ops.of(case.workload)
    config = {**case.default(), "BLOCK_M": 16, "BLOCK_N": 16}
    spec, made = op.launch_spec(case, config), op.tensors(case.workload, "cpu", seed=0)
    calls.clear()
    for variant, grid, arguments in steps(spec, made):
        variant["function"]()[grid](*map(for_triton, arguments))
    return made[op.OUTPUTS], calls.count("type"), calls.count("patch")

TEXTS = "h2_kv1_q20_k36_d16_fp16_causal", "h1_q18_k33_d24_fp32_full"
slow = [ran(text) for text in TEXTS]
triton_interpreter.quicken()
once = interpreter._patch_lang
triton_interpreter.quicken()
assert interpreter._patch_lang is once
quick = [ran(text) for text in TEXTS]
for (right, types, patches), (found, fewer_types, fewer_patches) in zip(slow, quick):
    assert all(map(torch.equal, right, found)) and not right[0].isnan().any()
    assert 10 * fewer_types < types and fewer_patches < patches, (types, fewer_types, patches)
assert interpreter.interpreter_builder.options.sanitize_overflow is False
print("same bits")
"""


def test_it_computes_the_same_bits_with_less_work() -> None:
    if reason := languages.load("triton").why_no_interpreter():
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=TREE,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "same bits\n", done.stderr[-3000:]
