"""Prepared launches on a CUDA device: Triton's own results, in threads, streams and devices."""

from __future__ import annotations

import gc
import random
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.gpu_kernels import seen_target
from tests.support.gpu_tensors import inputs
from tunefa.compile.contract import Compiled, LaunchSpec
from tunefa.compile.languages import triton as language
from tunefa.compile.launch import triton_abi, triton_launch
from tunefa.compile.launch.prepared import MAX_MAPS, PreparedLaunch
from tunefa.measure import check, reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.runtime.process import Runtime
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload

CUDA: Any = torch.cuda  # parts of it have no types

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.usefixtures("fresh"),
]

SIZES = "b2_h8_kv2_q300_k333_d64_bf16_causal"
CONFIG: dict[str, Any] = {
    "BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2,
    "USE_TMA": 0, "maxnreg": 0, "L2_SECTION_HEADS": 1, "PACK_GQA": 0,
}  # fmt: skip


def compiled(config: dict[str, Any], dtype: str = "bf16") -> tuple[LaunchSpec, Compiled, Any]:
    """(what is launched, compiled, five tensors) on this device; skips what cannot run here."""
    workload = Workload.parse(SIZES.replace("bf16", dtype))
    case = Case(kernels.load("attention_fwd_triton"), workload, seen_target())
    if refusal := case.refusal(config):
        pytest.skip(refusal)
    made = check.tensors(workload, "cuda")
    binary = language.compile(case, config, case.kernel.module.is_aligned(made))
    return LaunchSpec(case, config, 0.2), binary, made


# --------------------------------------------------------------------------- beside Triton's own


@pytest.mark.parametrize("use_tma", [0, 1])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_gives_what_triton_s_launcher_gives(use_tma: int, dtype: str) -> None:
    spec, binary, made = compiled({**CONFIG, "USE_TMA": use_tma}, dtype)
    prepared = language.prepare(spec, binary, made)
    assert isinstance(prepared, PreparedLaunch)
    for seed in range(3):
        others = check.tensors(spec.case.workload, "cuda", seed=seed)
        results = []
        for own in (False, True):
            for output in others[3:]:
                output.fill_(float("nan"))
            if own:
                prepared(*others)
            else:
                grid, arguments = spec.arguments(others)
                binary.binary[grid](*map(triton_launch.for_triton, arguments))
            results.append([output.clone() for output in others[3:]])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        assert not results[0][0].isnan().any()


def test_what_needs_triton_s_launcher_goes_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, binary, made = compiled(CONFIG)
    right = [x.clone() for x in made]
    language.prepare(spec, binary, made)(*right)
    monkeypatch.setattr(triton_abi, "parameters", lambda *arguments: None)
    other = language.prepare(spec, binary, made)
    assert isinstance(other, triton_launch.TritonLaunch)
    q, k, v, out, lse = made
    q, k, v, out = (x.transpose(1, 2) for x in (q, k, v, out))  # other views of the same
    other(q, k, v, out, lse)
    assert torch.equal(made[3], right[3]) and torch.equal(made[4], right[4])


def test_one_tensor_for_both_k_and_v() -> None:
    q, kv, other = inputs(128, 128)
    heads = [x.transpose(1, 2) for x in (q, kv, other)]
    tunefa.flash_attention(heads[0], heads[1], heads[1], layout="bhsd", causal=True)
    out = tunefa.flash_attention(heads[0], heads[1], heads[2], layout="bhsd", causal=True)
    right = tunefa.flash_attention(q, kv, other, causal=True)
    assert torch.equal(out.transpose(1, 2), right)


# --------------------------------------------------------------------------- threads and streams


def judge(x: tuple[Tensor, ...], scale: float | None) -> None:
    """Raises AssertionError where a call is not near the reference."""
    q, k, v = x
    out, lse = tunefa.flash_attention(q, k, v, causal=True, scale=scale, return_lse=True)
    wide = [each.transpose(1, 2).float() for each in x]
    inputs = AttentionInputs(wide[0], wide[1], wide[2], True, scale or 0.125)
    right, right_lse = reference.attention(inputs)
    torch.testing.assert_close(out.transpose(1, 2).float(), right, atol=3e-2, rtol=3e-2)
    torch.testing.assert_close(lse, right_lse, atol=1e-2, rtol=1e-2)


def test_threads_streams_and_random_shapes(fresh: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh._plans, "_size", 16)
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        chance = random.Random(seed)
        streams = [CUDA.Stream() for _ in range(4)]
        try:
            for _ in range(150):
                with torch.cuda.stream(chance.choice(streams)):
                    scale = chance.choice([None, 0.125, 0.25, 0.5])
                    judge(inputs(chance.randint(1, 40), chance.randint(1, 40)), scale)
        except BaseException as error:  # whatever it is, the test reports it
            failures.append(error)

    before = torch.cuda.memory_allocated()
    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    torch.cuda.synchronize()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # the reference's: 32 MiB per thread and stream
    assert len(fresh._plans) <= 16
    assert torch.cuda.memory_allocated() - before < 2**22


def test_tensor_maps_are_bounded() -> None:
    spec, binary, made = compiled({**CONFIG, "USE_TMA": 1})
    prepared = language.prepare(spec, binary, made)
    assert isinstance(prepared, PreparedLaunch)
    keep = [made[1].clone() for _ in range(2 * MAX_MAPS)]
    for _ in range(2):
        for k in keep:
            prepared(made[0], k, *made[2:])
    torch.cuda.synchronize()
    assert [len(maps.known) for _, _, maps in prepared._descriptors] == [MAX_MAPS, 1]


def test_a_new_thread_launches_what_another_prepared() -> None:
    q, k, v = inputs(77, 88)
    right = tunefa.flash_attention(q, k, v, causal=True)
    torch.cuda.synchronize()
    made: list[Tensor] = []
    k2 = k.clone()  # an address without a tensor map: the thread has to encode one
    thread = threading.Thread(
        target=lambda: made.append(tunefa.flash_attention(q, k2, v, causal=True))
    )
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(made[0], right)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_each_device_has_its_own_launches() -> None:
    q, k, v = inputs(77, 88)
    there = [x.to("cuda:1") for x in (q, k, v)]
    for _ in range(3):
        right = tunefa.flash_attention(q, k, v, causal=True)
        out = tunefa.flash_attention(there[0], there[1], there[2], causal=True)
        assert torch.equal(out.cpu(), right.cpu()) and torch.cuda.current_device() == 0
