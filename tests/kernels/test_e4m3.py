"""8-bit attention on Hopper: what runs first, and that keys meet their own probabilities."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import processes
from tests.support.launch_specs import spec_of
from tests.support.transposed_values import in_memory
from tunefa.compile import languages
from tunefa.compile.contract import Compiled
from tunefa.errors import TunefaError
from tunefa.measure.comparison import TOLERANCE
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_gluon_sm90")
SM90 = archs.load("sm90")
WORKLOAD = Workload.parse("b2_h4_kv2_q300_k333_d128_e4m3_full")
OFFSET, ROWS, BLOCK_N = 8, 128, 128
TRANSPOSE = """
import torch
from types import SimpleNamespace
from tunefa.spec import kernel
from tunefa.spec.workload import Workload

module = kernel.load("attention_fwd_gluon_sm90").module
for sizes in ("h1_q1_k1_d64", "b2_h4_kv2_q1_k333_d128", "h1_q1_k512_d64", "h6_kv3_q1_k17_d64"):
    workload = Workload.parse(f"{sizes}_e4m3_full")
    w = workload
    v = torch.randint(-128, 128, (w.batch, w.seqlen_k, w.heads_kv, w.head_dim_v), dtype=torch.int8)
    (shape, dtype), = module.scratch((), SimpleNamespace(workload=workload, config={}))
    made = torch.full(shape, 127, dtype=torch.int8)
    v = v.transpose(1, 2)
    grid, arguments = module.transposition.preprocess_arguments(v, made)
    words = [x.view(torch.int32) if isinstance(x, torch.Tensor) else x for x in arguments]
    module.transposition.transpose()[grid](*words)
    right = torch.zeros(w.batch, w.heads_kv, shape[3], w.head_dim_v, dtype=torch.int8)
    right[:, :, : w.seqlen_k] = v
    order = [8 * c3 + 2 * c21 + c0 for c21 in range(4) for c3 in range(2) for c0 in range(2)]
    right = right.unflatten(2, (-1, 16))[:, :, :, order].flatten(2, 3).transpose(2, 3)
    assert torch.equal(made, right), sizes
    print(sizes)
"""


def test_v_is_transposed_and_reordered_to_the_bit() -> None:
    assert len(processes.interpreted_code(TRANSPOSE).splitlines()) == 4


def in_registers(p: Any) -> Any:
    """(rows, keys) as `pack` has it."""
    return p.unflatten(1, (-1, 2, 4, 2)).transpose(2, 3).flatten(1)


def test_keys_meet_their_own_probabilities() -> None:
    p, v = torch.rand(8, 64).double(), torch.rand(64, 16).double()
    torch.testing.assert_close(in_registers(p) @ in_memory(v).T, p @ v)
    assert in_registers(torch.arange(16.0)[None])[0, :8].tolist() == [0, 1, 8, 9, 2, 3, 10, 11]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_stated_accuracy_is_that_of_the_algorithm(head_dim: int) -> None:
    """Block by block as the kernel has it, but that sums are fp32, against fp64."""

    def rounded(x: Tensor) -> Tensor:
        return x.to(torch.float8_e4m3fn).float()

    torch.manual_seed(0)
    q, k, v = (rounded(torch.randn(n, head_dim)) for n in (ROWS, 1024, 1024))
    scale = head_dim**-0.5
    row_max, row_sum = torch.full((ROWS,), -float("inf")), torch.zeros(ROWS)
    acc = torch.zeros(ROWS, head_dim)
    for start in range(0, len(k), BLOCK_N):
        keys, values = k[start : start + BLOCK_N], v[start : start + BLOCK_N]
        s = (q @ keys.T) * (scale / torch.tensor(2.0).log())
        new_max = torch.maximum(row_max, s.amax(1) - OFFSET)
        p, row_scale = (s - new_max[:, None]).exp2(), (row_max - new_max).exp2()
        row_max, row_sum = new_max, row_sum * row_scale + p.sum(1)
        acc = acc * row_scale[:, None] + in_registers(rounded(p)) @ in_memory(values).T
    out = (acc / row_sum[:, None]).bfloat16().double()
    lse = (row_max + row_sum.log2()) * torch.tensor(2.0).log()
    scores = q.double() @ k.double().T * scale
    right = scores.softmax(1) @ v.double()
    error = float((out - right).norm() / right.norm())
    assert TOLERANCE["e4m3"] / 4 < error < TOLERANCE["e4m3"] / 2
    torch.testing.assert_close(lse.double(), scores.logsumexp(1), rtol=0, atol=1e-5)


def on_sm90(workload: Workload) -> Case:
    return Case(KERNEL, workload, Target.named("sm90"))


def binary(workload: Workload, **changes: Any) -> Compiled:
    case = on_sm90(workload)
    made: Compiled = languages.load("gluon").compile(case, {**case.default(), **changes})
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "mask"),
    [(64, "full"), (128, "causal"), (64, "full_w500_a300_softcap")],
)
def test_defaults_multiply_8_bits_without_spills(head_dim: int, mask: str) -> None:
    made = binary(Workload.parse(f"h16_q4096_d{head_dim}_e4m3_{mask}"))
    assert made.resources.spill_bytes == 0 and made.preprocess is not None
    ptx = made.binary.asm["ptx"]
    assert "e4m3.e4m3" in ptx and "bf16.bf16" not in ptx


def test_only_e4m3_needs_something_to_run_first() -> None:
    language, config = languages.load("gluon"), on_sm90(WORKLOAD).default()
    assert KERNEL.module.preprocess(Workload.parse("q64"), config) is None
    wider = Workload.parse("b2_h4_kv2_q300_k333_d64_e4m3_full")
    keys = [language.binary_key(on_sm90(each), config, True) for each in (WORKLOAD, wider)]
    assert keys[0] != keys[1]
    longer = Workload.parse("b1_h8_kv2_q500_k777_d128_e4m3_full")
    assert language.binary_key(on_sm90(longer), config, True) == keys[0]
    ((shape, dtype),) = KERNEL.module.scratch((), spec_of(KERNEL, WORKLOAD, config))
    assert (shape, dtype) == ((2, 2, 128, 336), torch.float8_e4m3fn)


def test_probabilities_have_no_room_for_slack() -> None:
    config = {**KERNEL.default(WORKLOAD, SM90), "RESCALE_THRESHOLD": 8}
    assert "e4m3 has no headroom" in (KERNEL.space.refusal(config, WORKLOAD, SM90) or "")


@pytest.mark.parametrize("sizes", ["d256", "d80", "d128_dv64", "d64_dv128"])
def test_other_head_dimensions_are_refused_in_words(sizes: str) -> None:
    workload = Workload.parse(f"q512_{sizes}_e4m3_full")
    assert "one head dimension of 64 or 128" in (KERNEL.why_not(workload, SM90) or "")
    assert [each.name for each in kernels.serving(workload, SM90)] == ["attention_fwd_cuda_sm90"]
    with pytest.raises(TunefaError, match="no kernel serves"):
        kernels.serving(Workload.parse(f"q512_{sizes}_e4m3_w100"), SM90)
