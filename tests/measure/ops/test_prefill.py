"""tunefa/measure/ops/prefill.py: the reference is softmax by its definition, right outputs pass,
and outputs that are wrong in usual ways do not."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import paged_calls
from tunefa.measure.attention_inputs import as_indexed
from tunefa.measure.gate import Probe
from tunefa.measure.ops import prefill as op
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload

TEXTS = (
    "prefill_b3_h4_kv2_q17_k37_d32_bf16_page8_varlen",
    "prefill_b2_h4_kv2_q9_k5_d32_dv16_fp16_page1",  # rows without a key
    "prefill_b3_h6_kv2_q20_k37_d16_fp16_w9_page16_varlen_sinks",
    "prefill_b2_h2_q12_k30_d16_fp16_full_w5_a3_page4",
    "prefill_b3_h4_kv2_q12_k37_d32_bf16_page8_varlen_sinks_e4m3cache",
)


@functools.cache
def probe(text: str) -> Probe:
    return Probe.of(Workload.parse(text), "mixed", "cpu", torch.float64)


def plain(workload: Workload, made: Any) -> tuple[Tensor, Tensor]:
    """(out, lse): each row by itself, from the definition."""
    seqlens, table, starts = made[5:8]
    given = {"q": made[0].double(), "seqlens_k": seqlens, "cu_seqlens_q": starts}
    given |= {"k": made[1].transpose(1, 2).double(), "v": made[2].transpose(1, 2).double()}
    if workload.e4m3cache:
        for number in range(workload.batch):
            pages = table[number, : math.ceil(int(seqlens[number]) / made[1].shape[2])].long()
            for name, factors in (("k", made[-2]), ("v", made[-1])):
                given[name][pages] *= factors[number].double()[:, None]
    out, lse = paged_calls.expected({**given, "block_table": table}, *workload.band)
    if workload.sinks:
        with_sink = torch.logaddexp(lse, made[8].double()[:, None])
        out, lse = out * (lse - with_sink).exp().T[..., None], with_sink
    return out, lse


@pytest.mark.parametrize("text", TEXTS)
def test_the_reference_is_a_softmax_of_each_row(text: str) -> None:
    made = probe(text)
    out, lse = plain(made.shape, made.tensors)
    torch.testing.assert_close(made.expected.out.transpose(0, 1), out)
    torch.testing.assert_close(made.expected.lse, lse)


@pytest.mark.parametrize("text", TEXTS)
def test_the_rounded_softmax_passes(text: str) -> None:
    made = probe(text)
    for output, right in zip(made.outputs, plain(made.shape, made.tensors), strict=True):
        output.copy_(right)
    found = made.judge()
    assert found.passed and not found.strayed, found.reason


def of_another_sequence(made: Any, out: Tensor, lse: Tensor) -> None:
    out[[0, -1]] = out[[-1, 0]]


def of_another_head(made: Any, out: Tensor, lse: Tensor) -> None:
    out[:, [0, 2]] = out[:, [2, 0]]


def without_a_sink(made: Any, out: Tensor, lse: Tensor) -> None:
    out[3, 1] *= 1.0 + (made[8][1].double() - lse[1, 3]).exp()


def not_written(made: Any, out: Tensor, lse: Tensor) -> None:
    out[-1] = math.nan


def lse_in_bits(made: Any, out: Tensor, lse: Tensor) -> None:
    lse /= math.log(2)


FAULTS = [of_another_sequence, of_another_head, without_a_sink, not_written, lse_in_bits]


@pytest.mark.parametrize("fault", FAULTS)
def test_usual_faults_are_found(fault: Any) -> None:
    made = probe(TEXTS[2])
    out, lse = plain(made.shape, made.tensors)
    fault(made.tensors, out, lse)
    for output, wrong in zip(made.outputs, (out, lse), strict=True):
        output.copy_(wrong)
    found = made.judge()
    assert not found.passed and found.row is not None
    assert found.row.of == ("logsumexp" if fault is lse_in_bits else "output")
    assert "in sequence" in found.row.place


@pytest.mark.parametrize("text", TEXTS)
def test_all_but_a_sequence_s_own_keys_is_no_number(text: str) -> None:
    workload, made = Workload.parse(text), probe(text).tensors
    keys = sum(keys for _, keys in workload.lengths)
    for cache in made[1:3]:
        assert int(cache.float().isfinite().sum()) == keys * workload.heads_kv * cache.shape[-1]
        for number, (_, own) in enumerate(workload.lengths):
            pages = made[6][number, math.ceil(own / (workload.page_size or 1)) :].long()
            assert not as_indexed(cache)[pages].view(cache.dtype).float().isfinite().any()
    lengths = [0, *(rows for rows, _ in workload.lengths)]
    assert torch.equal(made[7], torch.tensor(lengths).cumsum(0).int())
    assert bool(made[0].isfinite().all()) and len(made[0]) == sum(lengths)


def test_ragged_sequences_have_the_binary_of_the_workload() -> None:
    workload = Workload.parse("prefill_b64_h32_kv4_q2k_k32k_w2000_page16_sinks")
    case = Case.from_names("attention_prefill_triton", str(workload), "sm80")
    config = case.default()
    small = op.ragged(workload, config)
    assert len({rows for rows, _ in small.lengths}) == 5 and small.is_packed
    assert max(keys for _, keys in small.lengths) > (small.window_left or 0) + config["BLOCK_N"]
    variants = [case.kernel.module.variant(each, config) for each in (workload, small)]
    assert variants[0]["constants"] == variants[1]["constants"]


def test_the_limit_is_the_tolerance_of_the_dtype() -> None:
    made = probe(TEXTS[1])
    assert op.limit(made.shape, "mixed", made.tensors, made.expected) == 1e-3
    assert op.limit(made.shape, "hostile", made.tensors, made.expected) == math.inf
