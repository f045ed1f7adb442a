"""tunefa/compile/launch/cuda_abi.py: parameters by kind, and arguments that no launch can renew."""

from __future__ import annotations

import ctypes
import re
import struct
from typing import Any

import pytest
import torch

from tests.support.own_kernels import OwnKernels
from tunefa.compile.contract import CompileError, LaunchSpec
from tunefa.compile.languages import cuda as language
from tunefa.compile.launch import cuda_abi
from tunefa.compile.launch.arguments import Descriptor, Length, Pointer, Value
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("h4_q100_d64")


@pytest.fixture
def kernel(own_kernels: OwnKernels, request: pytest.FixtureRequest) -> Kernel:
    """One of this test's own."""
    return own_kernels.add_cuda("launched_" + re.sub(r"\W", "_", request.node.name))


def launch(kernel: Kernel, made: Any, width: int = 1) -> Any:
    case, config = Case(kernel, WORKLOAD, Target.named("sm90")), {"WIDTH": width}
    return language.prepare(LaunchSpec(case, config, 0.5), language.compile(case, config), made)


def test_parameters_by_kind() -> None:
    class Sizes(ctypes.Structure):
        _fields_ = (("rows", ctypes.c_int), ("scale", ctypes.c_float))

    k = torch.zeros(2, 3, 100, 64, dtype=torch.bfloat16)
    tensors = [torch.zeros(4), k]
    map = {"map": k, "box": (1, 1, 64, 64), "swizzle_bytes": 128}
    viewed = {**map, "shape": (6, 100, 64), "strides": (6400, 64, 1), "box": (1, 8, 64)}
    found, tables = cuda_abi.parameters(
        [k, (k, 2), Sizes(7, 0.5), ctypes.c_int(3), map, viewed], tensors
    )
    values = [Value(struct.pack("if", 7, 0.5)), Value(struct.pack("i", 3))]
    assert found[:4] == [Pointer(1), Length(1, 2), *values]
    whole, other = found[4:]
    assert isinstance(whole, Descriptor) and isinstance(other, Descriptor) and tables == []
    assert (whole.tensor, whole.map.dtype, whole.map.element_bytes) == (1, 9, 2)
    assert (whole.map.shape, whole.map.strides) == ((2, 3, 100, 64), (19200, 6400, 64, 1))
    assert (whole.map.box, whole.map.swizzle, whole.map.fill_nan) == ((1, 1, 64, 64), 3, False)
    assert (other.map.shape, other.map.box) == ((6, 100, 64), (1, 8, 64))


@pytest.mark.parametrize("kind", ["int", "float", "None", "part", "length", "map"])
def test_arguments_that_no_launch_can_renew(kind: str) -> None:
    tensors, other = [torch.zeros(4)], torch.zeros(2)
    wrong: dict[str, Any] = {
        "int": 7,
        "float": 0.5,
        "None": None,
        "part": tensors[0][1:],
        "length": (other, 0),
        "map": {"map": other, "box": (2,), "swizzle_bytes": 0},
    }
    with pytest.raises(CompileError, match="argument 1 of its launch is"):
        cuda_abi.parameters([tensors[0], wrong[kind]], tensors)


def test_panels_divide_rows() -> None:
    tensor = torch.empty(2, 3, 16, 96, dtype=torch.bfloat16)
    given = {"map": tensor, "box": (1, 1, 16, 64), "swizzle_bytes": 128, "by_panels": True}
    with pytest.raises(CompileError, match="panels of 64 columns do not divide 96"):
        cuda_abi.parameters([given], [tensor])
    (found,), _ = cuda_abi.parameters([given | {"box": (1, 1, 16, 32)}], [tensor])
    assert isinstance(found, Descriptor) and found.map.axes == 5
