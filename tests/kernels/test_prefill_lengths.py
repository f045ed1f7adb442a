"""attention_prefill_triton in Triton's interpreter: sequences with no or one query or key, pages in
random order with NaN beside the keys, groups of 1 to 8 heads, and launches that were made for other
numbers of rows and sequences."""

from __future__ import annotations

import pytest
import torch

from tests.support import processes
from tunefa.compile.contract import LaunchSpec
from tunefa.measure import ops
from tunefa.spec.rounding import coarse_ceil
from tunefa.spec.target import Case

CODE = """
import torch
from dataclasses import replace
from tests.support.paged_calls import expected, made
from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload

KV_HEADS, DIM = 2, 16

def run(lengths, page_size, group, config, mask="causal", beyond=0):
    given = made(lengths, page_size, torch.float16, seed=group)
    torch.manual_seed(1)
    given["q"] = torch.randn(given["q"].shape[0], KV_HEADS * group, DIM, dtype=torch.float16)
    out = torch.full_like(given["q"], torch.nan)
    lse = torch.full((KV_HEADS * group, len(out)), torch.nan)
    heads = f"h{KV_HEADS * group}_kv{KV_HEADS}"
    text = f"prefill_b8_{heads}_q64_k128_d{DIM}_fp16_{mask}_page{page_size}"
    case = Case.from_names("attention_prefill_triton", text, "sm90")
    config = {**case.default(), "BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 1, **config}
    config["PACK_GQA"] &= group > 1
    assert case.refusal(config) is None, case.refusal(config)
    lengths_k = given["seqlens_k"] + beyond
    tensors = (given["q"], *(given[name].transpose(1, 2) for name in "kv"), out, lse, lengths_k,
               given["block_table"], given["cu_seqlens_q"])
    languages.load("triton").interpret(LaunchSpec(case, config, DIM**-0.5), tensors)
    wide = {name: x.double() if x.is_floating_point() else x
            for name, x in given.items() if isinstance(x, torch.Tensor)}
    left, right = case.workload.band
    right_out, right_lse = expected(wide, left, right)
    count = len(right_out)
    torch.testing.assert_close(out[:count].double(), right_out, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(lse[:, :count].double(), right_lse, atol=1e-4, rtol=1e-4)
    assert bool(out[count:].isnan().all()), "rows of no sequence are not written"
    assert bool(lse[:, count:].isnan().all())

SHORT = (5, 9), (0, 4), (1, 33), (12, 12), (3, 0), (7, 2), (1, 1), (0, 0)
FEW, RAGGED = (*SHORT, (20, 37)), (*SHORT, (40, 70))
TILE = {"USE_TMA": 0, "PACK_GQA": 1}
for group in (1, 2, 3, 7, 8):
    run(FEW[:: (-1) ** group], (16, 4)[group % 2], group, TILE)
for group in (2, 3):
    run(FEW[:: -((-1) ** group)], (4, 16)[group % 2], group, {**TILE, "PACK_GQA": 0})
for page_size in (1, 48, 64):
    run(RAGGED, page_size, 4, TILE)
for page_size in (16, 64):
    run(RAGGED, page_size, 4, {**TILE, "USE_TMA": 1})
    run(RAGGED, page_size, 3, {**TILE, "USE_TMA": 1, "BLOCK_M": 32, "num_warps": 2}, "causal_w20")
for mask in ("full", "causal_w5", "full_w9_a3", "full_a2", "full_w30"):
    run(RAGGED, 8, 2, TILE, mask)
run(((0, 5),) * 130 + ((3, 5),) * 3, 4, 1, TILE)  # more sequences than are counted at once
run(((4, 16),), 16, 2, TILE, beyond=1000)  # a length beyond the pages counts as full pages
print("right")
"""
PLANNED = """
import torch
from tests.support.fake_kernel import H200
from tests.support.fixed_store import Fixed
from tests.support.paged_calls import made
from tunefa.compile import languages
from tunefa.runtime import planning, prefill_call
from tunefa.runtime.call import PACKED, Options
from tunefa.runtime.choice import Chosen
from tunefa.runtime.prefill_call import PrefillCall, PrefillTensors
from tunefa.runtime.prefill_plan import KernelPrefillPlan, Prefill
from tunefa.spec import kernel as kernels

language = languages.load("triton")

class Interpreted:
    device_bytes = 0

    def __init__(self, spec, tensors):
        self.spec, self.views = spec, [(x.shape, x.stride()) for x in tensors]

    def __call__(self, *tensors):  # with the strides that it was prepared for, and today's rows
        seen = []
        for tensor, (shape, stride) in zip(tensors, self.views, strict=True):
            turned = tensor.dim() == 4
            seen.append(tensor.as_strided(shape, stride) if turned else tensor)
        language.interpret(self.spec, seen)

def call(lengths, seed, **changes):
    given = made(lengths, 16, torch.float16, seed)
    names = [name for name in PrefillTensors._fields if name in given]
    return PrefillTensors(*(given[name] for name in names))._replace(**changes)

torch._C._cuda_getDevice = lambda: -1
torch.Tensor.get_device = lambda self: -1
language.prepare = lambda spec, compiled, tensors: Interpreted(spec, tensors)
options = Options(True, None, None, PACKED, None, 64, 0)
kernel = kernels.load("attention_prefill_triton")
for seed, (sinks, scale) in enumerate(((None, None), (torch.randn(4), 0.5))):
    first = call(((40, 50), (0, 9), (3, 60)), seed, sinks=sinks)
    job = Prefill(PrefillCall.of(first, options, None), None)
    plan = planning.best_plan(job, H200, Fixed([]), [kernel], lambda case, config, aligned: None)
    assert isinstance(plan, KernelPrefillPlan) and "default" in plan.chosen.why, plan.chosen
    second = call(((20, 64), (1, 1), (21, 60)), seed, sinks=sinks)
    keys = {prefill_call.key(each, options, None) for each in (first, second)}
    for tensors in (first, second):
        out, lse = plan.run(tensors, scale, None)
        wide = tensors._replace(**{name: getattr(tensors, name).double() for name in "qkv"})
        right = Prefill(PrefillCall.of(wide, options, scale), None).in_pytorch(plan.chosen)
        right_out, right_lse = right.run(wide, scale, None)
        count = int(tensors.cu_seqlens_q[-1])
        torch.testing.assert_close(out[:count].double(), right_out[:count], atol=2e-3, rtol=2e-3)
        seen = lse[:, :count].double()
        torch.testing.assert_close(seen, right_lse[:, :count], atol=1e-4, rtol=1e-4)
    print(len(keys))
"""


@pytest.mark.slow
def test_ragged_lengths_pages_and_groups() -> None:
    assert processes.interpreted_code(CODE) == "right\n"


def test_one_launch_serves_all_calls_of_a_plan() -> None:
    text = "prefill_b9_h4_kv2_q50_k64_d16_fp16_page16"
    case = Case.from_names("attention_prefill_triton", text, "sm90")
    kernel, config = case.kernel.module, {**case.default(), "BLOCK_M": 16, "PACK_GQA": 0}
    spec = LaunchSpec(case, config, 0.25)
    made = ops.of(case.workload).tensors(case.workload, "cpu", seed=0)
    grid = kernel.arguments(made, spec)[0]
    for rows in (449, 450, 480):
        for batch in (9, 10):
            q = torch.zeros(rows, 4, 16)
            other = (q, *made[1:7], torch.zeros(batch + 1, dtype=torch.int32))
            assert kernel.arguments(other, spec)[0] == grid
            assert coarse_ceil(rows) == coarse_ceil(450) and coarse_ceil(batch) == coarse_ceil(9)
            tiles = sum(-(-each // 16) for each in [rows - batch + 1] + [1] * (batch - 1))
            assert 4 * tiles <= grid[0]


def test_a_plan_launches_the_kernel_on_each_call_s_tensors() -> None:
    assert processes.interpreted_code(PLANNED) == "1\n1\n", "both calls have one plan"
