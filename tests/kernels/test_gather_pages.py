"""prefill/gather_pages.py in Triton's interpreter: pages in random order with NaN beside the keys,
sequences with no or one key, lengths beyond the pages, and caches in e4m3; and plans that run it
before packed attention."""

from __future__ import annotations

import re

import pytest
import torch

from tests.support import processes
from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec
from tunefa.compile.launch import triton_abi
from tunefa.compile.launch.arguments import Length, Pointer
from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime import gathered
from tunefa.runtime.prefill_call import PrefillTensors
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

COPIED = """
import torch
from torch.nn.functional import pad
from tests.support.paged_calls import made, sequence
from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec
from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime import gathered
from tunefa.runtime.prefill_call import PrefillTensors
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

kernels.load("attention_prefill_triton").module

def gather(given, most, dtype=torch.float16, factors=(None, None)):
    page, dims = given["k"].shape[1], [given[name].shape[3] for name in "kv"]
    text = f"prefill_b4_h4_kv2_q64_k{most}_d{dims[0]}_dv{dims[1]}_full_page{page}"
    text += "_bf16" if dtype == torch.bfloat16 else "_fp16"
    text += "_e4m3cache" if factors[0] is not None else ""
    case = Case(gathered._KERNEL, Workload.parse(text), Target.named("sm90"))
    names = PrefillTensors._fields[:6]
    q = given["q"].to(dtype)
    tensors = PrefillTensors(q, *(given[name] for name in names[1:]), None, *factors)
    copied = gathered.copies(tensors, most)
    for each in copied:
        each.fill_(7)
    spec = LaunchSpec(case, {}, 1.0)
    languages.load("triton").interpret(spec, gathered.of_gather(tensors, copied))
    return copied

def check(given, copied, lengths=None, factors=None):
    lengths = given["seqlens_k"] if lengths is None else lengths
    assert torch.equal(copied[2], pad(lengths.cumsum(0), (1, 0)).int()), copied[2]
    total = int(lengths.sum())
    for place in (0, 1):
        keys = []
        for number, count in enumerate(lengths.tolist()):
            found = sequence(given, number)[1 + place][:count]
            if factors is not None:
                found = found.float() * factors[place][number][:, None]
            keys.append(found.to(copied[place].dtype))
        wanted = torch.cat(keys)
        if factors is not None and wanted.dtype == torch.bfloat16:
            # The interpreter cuts bits off where the hardware rounds: the last one may differ.
            off = (copied[place][:total].float() - wanted.float()).abs()
            assert bool((off <= 2**-7 * wanted.float().abs()).all())
            copied[place][:total] = wanted
        assert torch.equal(copied[place][:total], wanted), "the keys, one after the other"
        assert bool((copied[place][total:] == 7).all()), "nothing else is written"

RAGGED = ((5, 9), (0, 4), (1, 33), (12, 12), (3, 0), (7, 2), (1, 1), (0, 0), (40, 130))
for page_size in (1, 4, 16, 48, 64, 256):
    given = made(RAGGED, page_size, torch.float16)
    check(given, gather(given, 256))
for dtype in (torch.float16, torch.bfloat16):
    given = made(RAGGED[::-1], 16, dtype)
    check(given, gather(given, 256, dtype))
    turned = {n: given[n].transpose(1, 2).contiguous().transpose(1, 2) for n in "kv"}
    check(given, gather({**given, **turned}, 256, dtype))
for widths in ((40, 16), (24, 72)):  # columns that are no power of two, and other ones of V
    caches = {name: torch.cat([given[name]] * 5, -1)[..., :width] for name, width in
              zip("kv", widths, strict=True)}
    wide = {**given, **caches}
    check(wide, gather(wide, 256, torch.bfloat16))
many = made(((0, 3), (1, 0)) * 70 + ((2, 70),), 4, torch.float16)  # more than are added at once
check(many, gather(many, 128))
full = made(((1, 32), (4, 32)), 16, torch.float16)
full["seqlens_k"] = full["seqlens_k"] + torch.tensor([1000, 0]).int()
exact = torch.tensor([32, 32])
copied = gather(full, 64)
full["seqlens_k"] = exact.int()
check(full, copied)  # a length beyond the pages counts as full pages
check(full, gather(full, 16), torch.tensor([16, 16]))  # and one beyond the memory as full memory
copied = gather({**full, "seqlens_k": torch.tensor([-5, 32]).int()}, 64)
check(full, copied, torch.tensor([0, 32]))
eight = made(RAGGED, 16, torch.float32)
eight |= {name: eight[name].to(E4M3) for name in "kv"}
factors = 0.5 + torch.rand(2, 2, len(RAGGED)).transpose(1, 2)
for dtype in (torch.float16, torch.bfloat16):
    check(eight, gather(eight, 256, dtype, factors), None, factors)
ones = torch.ones(1, 1).expand(len(RAGGED), 2)
check(eight, gather(eight, 256, torch.float16, (ones, factors[1])), None, (ones, factors[1]))
print("right")
"""
PLANNED = """
import torch
from tests.support.fake_kernel import H200
from tests.support.fixed_store import Fixed
from tests.support.paged_calls import made
from tunefa.compile import languages
from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.runtime import gathered
from tunefa.runtime.call import PACKED, Options
from tunefa.runtime.prefill_call import PrefillCall, PrefillTensors
from tunefa.runtime.prefill_plan import Prefill
from tunefa.spec import kernel as kernels

class Copy:
    device_bytes = 3

    def __init__(self, spec, tensors):
        self.spec = spec

    def __call__(self, *tensors):
        languages.load("triton").interpret(self.spec, tensors)

class Attention:
    "Packed attention, each sequence by itself."
    device_bytes = 4

    def __init__(self, spec, tensors):
        self.spec = spec

    def __call__(self, q, k, v, out, lse, starts_q, starts_k):
        w = self.spec.workload
        for number in range(len(starts_q) - 1):
            rows, keys = (slice(*map(int, x[number : number + 2])) for x in (starts_q, starts_k))
            if rows.start == rows.stop:
                continue
            if keys.start == keys.stop:
                out[rows], lse[:, rows] = 0, -torch.inf
                continue
            one = (x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys]))
            mask = w.causal, self.spec.scale, w.window_left, w.window_right, self.spec.softcap, ()
            made, made_lse = reference.attention(AttentionInputs(*one, *mask))
            out[rows], lse[:, rows] = made[0].transpose(0, 1), made_lse[0]

torch._C._cuda_getDevice = lambda: -1
languages.load("triton").prepare = lambda spec, compiled, tensors: Copy(spec, tensors)
languages.load("gluon").prepare = lambda spec, compiled, tensors: Attention(spec, tensors)
gathered.LEAST_ROWS = 0
kernel = kernels.load("attention_fwd_gluon_sm90")
kernel.module
lengths = ((40, 50), (0, 9), (3, 60), (7, 3), (4, 0), (1, 1))
for seed, (more, scale, changes) in enumerate((
    ({}, None, {}),
    ({"sinks": torch.randn(4)}, 0.5, {}),
    ({}, None, {"softcap": 2.0}),
    ({"sinks": torch.randn(4)}, None, {"causal": False, "window_left": 3, "window_right": 9}),
)):
    given = made(lengths, 16, torch.float16, seed)
    names = [name for name in PrefillTensors._fields if name in given]
    tensors = PrefillTensors(*(given[name] for name in names))._replace(**more)
    options = Options(True, None, None, PACKED, None, 64, 0)._replace(**changes)
    for out in (None, torch.full_like(tensors.q, 7.0)):
        job = Prefill(PrefillCall.of(tensors, options, None), out)
        plan = gathered.plan(job, H200, Fixed([]), [kernel], lambda case, config, aligned: None)
        assert plan.device_bytes == 7 and "gathered first" in plan.chosen.why, plan.chosen
        found, lse = plan.run(tensors, scale, out)
        assert out is None or found is out and bool((out[-2:] == 7.0).all())
        wide = tensors._replace(**{name: getattr(tensors, name).double() for name in "qkv"})
        right = Prefill(PrefillCall.of(wide, options, scale), None).in_pytorch(plan.chosen)
        right_out, right_lse = right.run(wide, scale, None)
        count = int(tensors.cu_seqlens_q[-1])
        torch.testing.assert_close(found[:count].double(), right_out[:count], atol=3e-3, rtol=3e-3)
        near = {"atol": 1e-3, "rtol": 1e-3}
        torch.testing.assert_close(lse[:, :count].double(), right_lse[:, :count], **near)
print("right")
"""


@pytest.mark.parametrize("code", [COPIED, PLANNED], ids=["copied", "planned"])
def test_it_is_interpreted(code: str) -> None:
    assert processes.interpreted_code(code) == "right\n"


def test_it_reads_and_writes_16_bytes_at_a_time() -> None:
    language = languages.load("triton")
    if reason := language.why_no_compiler(Target.named("sm90").arch):
        pytest.skip(reason)
    _ = kernels.load("attention_prefill_triton").module  # makes the folder of kernels known
    workload = Workload.parse("prefill_b8_h32_kv8_q2048_k8192_d128_bf16_page64")
    case = Case(gathered._KERNEL, workload, Target.named("sm90"))
    for aligned in (True, False):
        compiled = language.compile(case, {}, aligned)
        assert compiled.resources.spill_bytes == 0
        ptx = compiled.binary.asm["ptx"]
        wide = [len(re.findall(rf"{step}\.global\.v4\.b32", ptx)) for step in ("ld", "st")]
        assert wide == [16 if aligned else 0, 16], "8 of K and 8 of V"


@pytest.mark.parametrize("text", ["page16", "page64_e4m3cache"])
def test_a_launch_needs_nothing_of_triton_and_follows_each_call_s_lengths(text: str) -> None:
    language = languages.load("triton")
    if reason := language.why_no_compiler(Target.named("sm90").arch):
        pytest.skip(reason)
    module = kernels.load("attention_prefill_triton").module and gathered._KERNEL.module
    workload = Workload.parse(f"prefill_b2_h8_kv2_q2048_k640_d64_bf16_{text}")
    case = Case(gathered._KERNEL, workload, Target.named("sm90"))
    compiled = language.compile(case, {}, True)
    cache = torch.zeros(5, workload.page_size or 1, 2, 64).bfloat16()
    k, v = (cache.to(E4M3) if workload.e4m3cache else cache.clone() for _ in "kv")
    starts, lengths_k, table = (torch.zeros(shape).int() for shape in ((3,), (2,), (2, 40)))
    tensors = PrefillTensors(torch.zeros(9, 8, 64).bfloat16(), k, v, starts, lengths_k, table)
    if workload.e4m3cache:
        tensors = tensors._replace(k_descale=torch.ones(2, 2), v_descale=torch.ones(2, 2))
    given = gathered.of_gather(tensors, gathered.copies(tensors, 640))
    grid, arguments = module.arguments(given, LaunchSpec(case, {}, 1.0))
    assert grid == (10 * 2 * 2, 1, 1), "10 blocks of 64 keys, of 2 heads and 2 sequences"
    made = triton_abi.parameters(compiled.binary, arguments, given)
    assert made is not None and not made[1], "all tensors are the call's"
    lengths = [each for each in made[0] if isinstance(each, Length)]
    assert [(each.tensor, each.axis) for each in lengths] == [(2, 0), (3, 1)]
    used = {each.tensor for each in made[0] if isinstance(each, Pointer)}
    assert used == set(range(len(given)))
