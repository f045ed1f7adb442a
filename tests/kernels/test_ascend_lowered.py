"""The kernel as triton-ascend lowers it, on the CPU: linalg to loops, to LLVM, to a shared library.

Unlike Triton's interpreter it is what Huawei's compiler is given. It takes Debian's mlir-19-tools
and llvm-19, and a C compiler.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.ascend_compiler import THERE, needs_compiler
from tests.support.ascend_interpreted import CORES, KERNEL
from tunefa.compile.ascend import front_end, toolchain
from tunefa.compile.contract import LaunchSpec
from tunefa.measure import check
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

TOOLS = {name: shutil.which(f"{name}-19") or "" for name in ("mlir-opt", "mlir-translate", "llc")}
TOOLS["cc"] = shutil.which("cc") or ""
MISSING = [name for name, path in TOOLS.items() if not path]
needs_tools = pytest.mark.skipif(
    bool(MISSING),
    reason=f"no {', '.join(MISSING)}: apt install mlir-19-tools llvm-19 gcc",
)
PASSES = [
    "--convert-elementwise-to-linalg",
    "--eliminate-empty-tensors",
    "--empty-tensor-to-alloc-tensor",
    "--one-shot-bufferize=allow-return-allocs-from-loops=true",
    "--canonicalize",
    "--convert-linalg-to-loops",
    "--llvm-request-c-wrappers",
    "--convert-scf-to-cf",
    "--expand-strided-metadata",
    "--lower-affine",
    "--convert-math-to-llvm",
    "--convert-math-to-libm",
    "--convert-arith-to-llvm",
    "--finalize-memref-to-llvm",
    "--convert-func-to-llvm",
    "--convert-cf-to-llvm",
    "--convert-arith-to-llvm",
    "--reconcile-unrealized-casts",
]
B3 = archs.npu(archs.load("ascend910b3"))
CASES = [
    ("h4_kv2_b2_q128_k128_d64_fp16_causal", 64, 64, 1),
    ("h2_q100_k230_d64_fp16_causal", 48, 96, 1),
    ("h2_q100_k230_d64_fp16_causal", 48, 96, 2),
    ("h2_kv1_q70_k101_d128_fp16_full", 80, 48, 1),
    ("h2_kv1_q70_k101_d128_fp16_full", 80, 48, 2),
    ("h1_q1_k300_d64_fp16_causal", 16, 112, 1),
    ("h1_q50_k128_d256_fp16_full", 32, 64, 1),
]


class Memref(ctypes.Structure):
    """A vector, as MLIR passes one."""

    _fields_ = (
        ("allocated", ctypes.c_void_p),
        ("aligned", ctypes.c_void_p),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


def built(ir: str, folder: Path) -> Any:
    """The kernel of a linalg module, as a function for ctypes."""
    (folder / "kernel.mlir").write_text(ir)
    copy = str(Path(__file__).parents[1] / "support" / "memref_copy.c")
    commands = [
        ["mlir-opt", "kernel.mlir", "--allow-unregistered-dialect", *PASSES, "-o", "llvm.mlir"],
        ["mlir-translate", "--mlir-to-llvmir", "llvm.mlir", "-o", "kernel.ll"],
        ["llc", "-O2", "-filetype=obj", "-relocation-model=pic", "kernel.ll", "-o", "kernel.o"],
        ["cc", "-O2", "-shared", "-fPIC", copy, "kernel.o", "-lm", "-o", "kernel.so"],
    ]
    for name, *words in commands:
        done = subprocess.run([TOOLS[name], *words], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{name}: {done.stderr[:2000]}"
    library = ctypes.CDLL(str(folder / "kernel.so"))
    return library._mlir_ciface_attention_fwd


def passed(argument: Any) -> Any:
    """An argument of the kernel as ctypes passes it."""
    if isinstance(argument, torch.Tensor):
        start = argument.data_ptr()
        return ctypes.byref(Memref(start, start, 0, argument.untyped_storage().nbytes(), 1))
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    return ctypes.c_int32(argument)


@needs_tools
@needs_compiler
@pytest.mark.parametrize(("text", "block_m", "block_n", "split"), CASES)
def test_numbers_are_right(
    text: str, block_m: int, block_n: int, split: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(toolchain, "folder", lambda: THERE)
    kernel, workload = kernels.load(KERNEL), Workload.parse(text)
    config = {**kernel.default(workload, B3), "SPLIT_MASK_LOOP": split}
    config |= {"BLOCK_M": block_m, "BLOCK_N": block_n}
    variant = kernel.module.variant(workload, config)
    task = front_end.Task.of(kernel, variant, B3)
    run = built(front_end.lowered(toolchain.installed(), task), tmp_path)
    tensors, scale = check.tensors(workload, "cpu", seed=0), workload.head_dim**-0.5
    _, arguments = kernel.module.arguments(
        tensors, LaunchSpec(Case(kernel, workload, Target.named("ascend910b3")), config, scale)
    )
    own = arguments[: len(variant["signature"])]  # the rest are constants
    unused = torch.zeros(1, dtype=torch.int8)  # locks and workspace, which only an NPU has
    for program in range(CORES):
        grid = [CORES, 1, 1, program, 0, 0]
        run(*map(passed, [unused, unused, *own, *grid]))
    verdict = check.compare(workload, tensors, scale, torch.float64)
    assert verdict.passed, verdict.reason
