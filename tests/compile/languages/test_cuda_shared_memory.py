"""A kernel in CUDA C++ whose space lays out its shared memory: macros, keys, size of a launch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.own_kernels import COPY_IN_CUDA_HOST, FIRST_IN_CUDA, OwnKernels
from tunefa import assets
from tunefa.compile.languages import cuda as language
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

SECTION = """\
shared_memory:
  first: {bytes: 256}
  table:
    bytes: 128 * WIDTH
    slots: 2
    at: round_up(first_end, 1024)
defaults:"""
SOURCE = """
extern "C" __global__ void copy(const float *source, float *target, int, long long, const float *) {
    extern __shared__ float staged[];
    staged[(TABLE_OFFSET + (TABLE_SLOTS - 1) * TABLE_BYTES) / 4 + threadIdx.x] = *source;
    *target = staged[FIRST_OFFSET / 4];
}
"""
CASE = Case(
    kernels.load("attention_fwd_cuda_sm80"), Workload.parse("h4_q100_d64"), Target.named("sm90")
)
CONFIG = {"WIDTH": 1}


def laid_out(own_kernels: OwnKernels, name: str, old: str = "", new: str = "") -> Kernel:
    """A kernel with SECTION, a part of it replaced."""
    made = own_kernels.add_cuda(name, cu=SOURCE, py=COPY_IN_CUDA_HOST + FIRST_IN_CUDA)
    path = made.space.path
    text = path.read_text(encoding="utf-8").replace("defaults:", SECTION.replace(old, new), 1)
    path.write_text(text, encoding="utf-8")
    return kernels.load(name)


def case(kernel: Kernel) -> Case:
    return replace(CASE, kernel=kernel)


def entries() -> list[Path]:
    return [path for path in (assets.cache() / "cubins").rglob("*") if path.is_file()]


def test_a_kernel_gets_its_layout_as_macros_and_its_size_to_launch(own_kernels: OwnKernels) -> None:
    kernel = laid_out(own_kernels, "laid_out_in_cuda")
    variant, first = language.variants(case(kernel), CONFIG, True).values()
    regions = {"FIRST_OFFSET": 0, "FIRST_BYTES": 256, "FIRST_SLOTS": 1,
               "TABLE_OFFSET": 1024, "TABLE_BYTES": 128, "TABLE_SLOTS": 2}  # fmt: skip
    assert variant["defines"] == {"WIDTH": 1, **regions}
    assert variant["smem_bytes"] == 1280
    assert first["defines"] == {"WIDTH": 2}, "what runs first has no part in it"
    assert first["smem_bytes"] == 65536, "as the host side says"


def test_a_layout_is_a_part_of_every_key(own_kernels: OwnKernels) -> None:
    kernel = laid_out(own_kernels, "keyed_by_layout")
    moved = laid_out(own_kernels, "keyed_by_layout", "1024", "2048")
    first, second = (case(each) for each in (kernel, moved))
    assert language.binary_key(first, CONFIG, True) != language.binary_key(second, CONFIG, True)
    assert kernel.source_hash != moved.source_hash
    images = []
    for each in (first, second):
        variant = language.variants(each, CONFIG, True)["binary"]
        images.append(language._built(each.kernel, variant, each.arch))
    assert images[0].cubin.image != images[1].cubin.image
    assert [each.smem_bytes for each in images] == [1280, 2304]
    assert len(entries()) == 2


def test_two_macros_of_one_name_are_refused(own_kernels: OwnKernels) -> None:
    kernel = laid_out(own_kernels, "clashing_macros")
    text = kernel.source.read_text(encoding="utf-8")
    kernel.source.write_text(text.replace('"WIDTH": config', '"TABLE_SLOTS": 2, "WIDTH": config'))
    with pytest.raises(TunefaError, match=r"clashing_macros has a macro TABLE_SLOTS, .*rename"):
        language.variants(case(kernel), CONFIG, True)
