"""tunefa/compile/machine_code.py: which binaries are one program, by what real compilers make."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cuda_copies import compiled as copied
from tests.support.own_kernels import COPY_IN_CUDA, OwnKernels
from tunefa.compile import machine_code
from tunefa.compile.contract import Compiled
from tunefa.compile.languages import triton as language
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_triton")
CASE = Case(KERNEL, Workload.parse("q1024_d64"), Target.named("sm90"))
CONFIG: dict[str, Any] = {
    "BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2,
    "USE_TMA": 0, "maxnreg": 168, "L2_SECTION_HEADS": 1, "PACK_GQA": 0,
}  # fmt: skip


def compiled(**changes: Any) -> Compiled:
    return language.compile(CASE, {**CONFIG, **changes})


def code(made: Compiled) -> str:
    found = made.resources.code
    assert found is not None and len(found) == 16
    return found


def test_a_register_limit_that_binds_nothing_makes_no_other_program() -> None:
    made = compiled()
    assert made.resources.registers and made.resources.registers < 168
    higher = compiled(maxnreg=224)
    assert higher.binary.asm["cubin"] != made.binary.asm["cubin"], "debug data names the limit"
    assert code(higher) == code(made)


@pytest.mark.parametrize("change", [{"num_stages": 3}, {"maxnreg": 64}])
def test_other_instructions_are_another_program(change: dict[str, int]) -> None:
    assert code(compiled(**change)) != code(compiled())


def test_what_a_launch_needs_counts_as_well() -> None:
    binary = compiled().binary
    same = machine_code.of_triton(binary)
    more = binary.metadata._replace(shared=binary.metadata.shared + 1024)

    class Other:
        asm, metadata = binary.asm, more

    assert machine_code.of_triton(Other()) != same
    assert machine_code.of_triton(binary, binary) != same, "a kernel that runs first is part of it"


def test_only_what_the_chip_sees_of_a_source_counts(own_kernels: OwnKernels) -> None:
    first = own_kernels.add_cuda("code_first")
    renamed = COPY_IN_CUDA.replace("found", "sums").replace("rows", "count")
    second = own_kernels.add_cuda("code_second", cu=f"// a comment\n{renamed}")
    third = own_kernels.add_cuda("code_third", cu=COPY_IN_CUDA.replace("own[32]", "own[64]"))
    assert code(copied(second)) == code(copied(first))
    assert code(copied(third)) != code(copied(first)), "more shared memory"
    assert code(copied(first, "sm80")) != code(copied(first))


def test_a_constant_is_part_of_the_program(own_kernels: OwnKernels) -> None:
    table = "__constant__ float scales[2] = {1.0f, 2.0f};\n"
    source = table + COPY_IN_CUDA.replace("staged[i];", "staged[i] * scales[rows & 1];")
    first = own_kernels.add_cuda("code_two", cu=source)
    second = own_kernels.add_cuda("code_three", cu=source.replace("2.0f", "3.0f"))
    assert code(copied(first)) != code(copied(second))
    assert copied(first).resources.registers == copied(second).resources.registers


@pytest.mark.parametrize("image", [b"", b"\x7fELF", b"no cubin", b"\x7fELF\x02\x01" + b"\xff" * 90])
def test_every_byte_of_another_file_counts(image: bytes) -> None:
    assert machine_code.code([image]) == machine_code.code([image])
    assert machine_code.code([image]) != machine_code.code([image + b"\0"])
