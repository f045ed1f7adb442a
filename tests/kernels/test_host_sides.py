"""Host sides of kernels: what launches a binary needs no compiler."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.tree import TREE
from tunefa.compile import languages
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNELS = [each for each in map(kernels.load, kernels.names()) if not each.is_library]
WORKLOADS = [
    "b2_h4_kv2_q70_k90_d64_bf16_causal",
    "h2_q100_k130_d80_fp16_full",
    "h2_q64_k64_d96_fp16_causal",
    "b2_h4_kv2_q70_k90_d64_e4m3_full",
    "b2_h4_kv2_q70_k90_d128_bf16_causal_varlen",
    "h4_kv1_q3_k200_d64_bf16_causal_w50_softcap",
    "bwd_b2_h4_kv2_q70_k90_d64_bf16_causal",
    "bwd_b2_h4_kv2_q70_k90_d80_fp16_full_w50_varlen",
    "bwd_b2_h4_kv2_q70_k90_d192_dv128_bf16_causal",
    "decode_b2_h4_kv2_k900_d64_bf16_causal",
    "decode_h8_kv1_q3_k200_d128_fp16_causal_w50_softcap_sinks_page16_varlen",
    "decode_b3_h4_kv2_k200_d64_bf16_sinks_page16_e4m3cache",
    "decode_b2_h16_kv1_q2_k200_d576_dv512_bf16_page64_varlen_mla",
    "decode_b3_h4_kv2_k200_d64_bf16_sinks_page16_prefix",
    "prefill_b2_h4_kv2_q70_k90_d128_bf16_page64_varlen",
    "prefill_b3_h4_kv2_q70_k90_d64_fp16_full_page16_w50_a9_softcap_sinks_e4m3cache",
    "matmul_m256_n512_k128_bf16_nt",
    "matmul_m100_n70_k33_fp32_tn",
]
HOST_SIDES = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"triton", "cuda", "optuna"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import torch
from tunefa.compile.contract import variants
from tunefa.compile import languages
from tunefa.measure import ops
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

def kind(argument):
    if isinstance(argument, dict):
        shape = tuple(argument.get("shape", argument["map"].shape))
        return ["map", len(shape), len(argument["box"])]
    return type(argument).__name__

for name in kernels.names():
    kernel = kernels.load(name)
    assert kernel.module is not None
    if kernel.is_library:
        continue
    for text in sys.argv[1:]:
        chip = "ascend910b3" if kernel.space.vendor == "huawei" else "sm90"
        case = Case(kernel, Workload.parse(text), Target.named(chip))
        if case.why_not() is not None:
            continue
        for config in [case.default(), *case.feasible().configs[::1000]]:
            tensors = ops.of(case.workload).tensors(case.workload, "cpu", seed=0)
            spec = ops.of(case.workload).launch_spec(case, config)
            made = variants(case, config, kernel.module.is_aligned(tensors))
            if spec.has_scratch(len(made) == 1):
                shapes = spec.scratch(tensors)
                tensors += tuple(torch.empty(shape, dtype=dtype) for shape, dtype in shapes)
            launches = {"binary": spec.arguments, "preprocess": spec.preprocess_arguments,
                        "postprocess": spec.postprocess_arguments}
            languages.load(kernel.language).binary_key(case, config, True)
            kernel.module.__dict__.get("specialize", lambda *_: {})(case.workload, config, 132)
            for step, variant in made.items():
                grid, arguments = launches[step](tensors)
                said = {"kernel": name, "workload": text, "config": config, "grid": grid}
                types = list(variant.get("signature", {}).items())
                kinds = [kind(argument) for argument in arguments]
                print(json.dumps({**said, "signature": types, "arguments": kinds}))
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"triton", "cuda", "optuna"}, loaded
"""


@pytest.fixture(scope="module")
def launches() -> list[dict[str, Any]]:
    """Each launch of a kernel or its preprocess kernel, as a process without compilers makes it."""
    done = subprocess.run(
        [sys.executable, "-c", HOST_SIDES, *WORKLOADS],
        cwd=TREE,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_host_sides_need_no_compiler(launches: list[dict[str, Any]]) -> None:
    assert {each["kernel"] for each in launches} == {kernel.name for kernel in KERNELS}
    served = {each["workload"] for each in launches}
    assert served == set(WORKLOADS)
    assert all(size > 0 for each in launches for size in each["grid"])


def test_arguments_are_of_their_signature_s_types(launches: list[dict[str, Any]]) -> None:
    seen = 0
    for each in launches:
        if not each["signature"]:  # of CUDA C++, whose parameters are in the .cu
            continue
        types = [kind for _, kind in each["signature"]]
        assert each["kernel"] == "attention_fwd_ascend" or len(types) == len(each["arguments"])
        for kind, argument in zip(types, each["arguments"], strict=False):
            allowed: Any
            if kind.startswith("tensordesc"):
                rank = kind.partition("[")[2].partition("]")[0].count(",") + 1
                assert argument == ["map", rank, rank], each
                seen += 1
            elif kind != "constexpr":
                allowed = {"*": ("Tensor",), "f": ("float",), "i": ("int", "tuple")}[kind[0]]
                assert argument in allowed, (each, kind, argument)
    assert seen > 20


def with_triton(kernel: Kernel) -> list[tuple[Case, dict[str, Any]]]:
    """Cases of one of Triton's kernels on a chip, with their default configs."""
    cases = [Case(kernel, Workload.parse(text), Target.named("sm90")) for text in WORKLOADS]
    return [(case, case.default()) for case in cases if case.why_not() is None]


@pytest.mark.parametrize(
    "kernel",
    [each for each in KERNELS if each.language in ("triton", "gluon")],
    ids=lambda kernel: str(kernel.name),
)
def test_a_signature_names_the_arguments_of_the_device_code(kernel: Kernel) -> None:
    from tunefa.compile.contract import variants

    for case, config in with_triton(kernel):
        for variant in variants(case, config, True).values():
            function = variant["function"]()
            assert list(variant["signature"]) == list(function.arg_names)
            assert set(variant["constants"]) <= set(function.arg_names)
            assert set(variant["aligned"]) <= set(function.arg_names)


def test_the_signature_for_ascend_names_the_arguments_of_the_device_code() -> None:
    kernel = kernels.load("attention_fwd_ascend")
    workload = Workload.parse("h2_q64_k64_d64_fp16_causal")
    case = Case(kernel, workload, Target.named("ascend910b3"))
    variant = kernel.module.variant(workload, case.default())
    names = [*variant["signature"], *variant["constants"]]
    assert names == list(kernel.module.device_function().arg_names)
    assert (kernel.source.parent / variant["source"]).is_file()


def test_a_descriptor_s_type_gets_the_widest_swizzle() -> None:
    gluon = languages.load("gluon")
    made = gluon._with_layout("tensordesc<bf16[1, 1, 64, 64]>")
    assert made.startswith("tensordesc<bf16[1, 1, 64, 64],NVMMASharedLayout(swizzle_byte_width=128")
    assert "swizzle_byte_width=32" in gluon._with_layout("tensordesc<fp8e4nv[1, 64, 32]>")
    assert gluon._with_layout(made) == made and gluon._with_layout("*bf16") == "*bf16"
