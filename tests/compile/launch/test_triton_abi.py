"""tunefa/compile/launch/triton_abi.py: parameters as the compiler's own PTX has them."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.launch_specs import spec_of
from tests.support.own_kernels import OwnKernels
from tests.support.tabled_kernel import tabled
from tunefa.compile import languages
from tunefa.compile.launch import triton_abi
from tunefa.compile.launch.arguments import Descriptor, Length, Pointer, Value
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_triton")
WORKLOAD = Workload.parse("b2_h8_kv2_q100_k70_d64_dv128_bf16_causal")
SM90 = Target.named("sm90")
CONFIG: dict[str, Any] = {
    "BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2,
    "USE_TMA": 1, "maxnreg": 0, "L2_SECTION_HEADS": 1, "PACK_GQA": 0,
}  # fmt: skip


def tensors() -> list[Tensor]:
    """(q, k, v, out, lse) of WORKLOAD."""

    def heads(count: int, seqlen: int, dim: int) -> Tensor:
        return torch.zeros(2, seqlen, count, dim, dtype=torch.bfloat16).transpose(1, 2)

    return [
        *(heads(8, 100, 64), heads(2, 70, 64), heads(2, 70, 128), heads(8, 100, 128)),
        torch.zeros(2, 8, 100),
    ]


def binary(use_tma: int) -> Any:
    config = {**CONFIG, "USE_TMA": use_tma}
    made = languages.load("triton").compile(Case(KERNEL, WORKLOAD, SM90), config)
    return made.binary


def arguments(use_tma: int, made: list[Tensor]) -> list[Any]:
    _, found = spec_of(KERNEL, WORKLOAD, {**CONFIG, "USE_TMA": use_tma}, 0.25).arguments(made)
    return list(found)


def test_pointers_and_numbers() -> None:
    made = tensors()
    found = triton_abi.parameters(binary(0), arguments(0, made), made)
    assert found is not None
    parameters, tables = found
    assert parameters[:5] == [Pointer(place) for place in range(5)] and tables == []
    strides = [step for tensor in made[:4] for step in tensor.stride()[:3]]
    kinds = ["q", "i", "i"] * 4
    expected = [Value(struct.pack(kind, step)) for kind, step in zip(kinds, strides, strict=True)]
    assert parameters[5:17] == expected
    scale = struct.unpack("f", parameters[-3].data)[0]  # type: ignore[union-attr]
    assert scale == pytest.approx(0.25 * 1.4426950408889634)
    assert parameters[-2:] == [Value(bytes(8))] * 2  # no scratch memory


def test_lengths() -> None:
    made = tensors()
    given = arguments(0, made)
    kinds = list(binary(0).src.signature.values())
    place = next(i for i, kind in enumerate(kinds) if kind == "i32")
    given[place] = (made[2], 3)
    found = triton_abi.parameters(binary(0), given, made)
    assert found is not None and found[0][place] == Length(2, 3)
    given[place] = (made[2].detach(), 3)  # of none of the call's tensors
    assert triton_abi.parameters(binary(0), given, made) is None


def test_descriptors() -> None:
    made = tensors()
    made[2] = made[2].detach()
    found = triton_abi.parameters(binary(1), arguments(1, made), made)
    assert found is not None
    parameters, _ = found
    k, v = (each for each in parameters if isinstance(each, Descriptor))
    assert (k.tensor, v.tensor) == (1, 2)
    assert (k.map.dtype, k.map.element_bytes, k.map.fill_nan) == (9, 2, False)
    assert k.map.shape == (2, 2, 70, 64) and k.map.strides == made[1].stride()
    assert v.map.shape == (2, 2, 70, 128) and v.map.strides == made[2].stride()
    assert k.map.box == (1, 1, 64, 64) and k.map.swizzle == 3
    assert v.map.box == (1, 1, 64, 64)  # 128 bytes are the most that a swizzled row may have
    place = parameters.index(k)
    assert [each.data for each in parameters[place + 1 : place + 9]] == [  # type: ignore[union-attr]
        *(struct.pack("i", size) for size in k.map.shape),
        *(struct.pack("q", step) for step in k.map.strides),
    ]


def test_the_types_of_tensor_maps_are_those_of_triton_s_launcher() -> None:
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    ours = {number: triton_abi._TENSOR_MAP_TYPES.get(number, number) for number in range(16)}
    assert ours == TMA_DTYPE_DEVICE_TO_HOST


def test_a_table_is_a_value_that_lives_on(own_kernels: OwnKernels) -> None:
    kernel, made, config = tabled(own_kernels, "tabled_abi"), tensors(), {**CONFIG, "USE_TMA": 1}
    compiled = languages.load("triton").compile(Case(kernel, WORKLOAD, SM90), config)
    _, given = spec_of(kernel, WORKLOAD, config, 0.25).arguments(made)
    found = triton_abi.parameters(compiled.binary, given, made)
    assert found is not None
    parameters, tables = found
    assert len(tables) == 1 and tables[0] is given[0]
    assert parameters[0] == Value(struct.pack("Q", tables[0].data_ptr()))


def test_what_only_triton_s_launcher_can_do() -> None:
    made = tensors()
    given = arguments(1, made)
    tma = binary(1)
    assert triton_abi.parameters(tma, given, made) is not None
    part = [made[0][:, :1], *given[1:]]  # of a tensor, whose address the next call changes
    assert triton_abi.parameters(tma, part, made) is None
    own = [given[0], SimpleNamespace(base=made[1], round_f32_to_tf32=True), *given[2:]]
    assert triton_abi.parameters(tma, own, made) is None  # a descriptor of Triton's own
    other = SimpleNamespace(
        src=tma.src, metadata=tma.metadata, asm={"ptx": tma.asm["ptx"].replace("u32", "u16")}
    )
    assert triton_abi.parameters(other, given, made) is None


def test_entry_of_a_plain_launch_only() -> None:
    made = binary(1)
    entry = triton_abi.entry(made, 3, (7, 1, 1))
    assert entry is not None and (entry.device, entry.grid) == (3, (7, 1, 1))
    assert (entry.threads, entry.smem_bytes) == (128, made.metadata.shared)
    for change in (
        {"num_ctas": 2},
        {"global_scratch_size": 128},
        {"profile_scratch_size": 128},
        {"launch_cooperative_grid": True},
    ):
        other = SimpleNamespace(metadata=made.metadata._replace(**change), function=1)
        assert triton_abi.entry(other, 0, (1, 1, 1)) is None


@pytest.mark.parametrize("overlaps", [False, True])
def test_entry_that_may_start_before_the_kernel_before_it_ends(overlaps: bool) -> None:
    made = binary(1)
    other = SimpleNamespace(metadata=made.metadata._replace(launch_pdl=overlaps), function=1)
    entry = triton_abi.entry(other, 0, (1, 1, 1))
    assert entry is not None and entry.overlaps_kernel_before is overlaps


def test_sizes_of_a_ptx_entry() -> None:
    text = """
.visible .entry f_2(
\t.param .u64 .ptr .global .align 1 f_2_param_0,
\t.param .align 64 .b8 f_2_param_1[128],
\t.param .u8 f_2_param_2,
\t.param .f32 f_2_param_3
)
.reqntid 128 { ld.param.b64 %rd1, [f_2_param_0]; }
"""
    assert list(triton_abi.sizes(text)) == [8, 128, 1, 4]
    assert list(triton_abi.sizes(".version 8.0")) == []
