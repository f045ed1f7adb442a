"""tunefa/measure/ops/decode.py: the reference is softmax by its definition, right outputs pass, and
outputs that are wrong in usual ways do not."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tunefa.measure import check
from tunefa.measure.attention_inputs import as_indexed
from tunefa.measure.gate import Gate, Probe
from tunefa.measure.ops import decode as op
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload

TEXTS = (
    "decode_b3_h4_kv2_q1_k37_d32_bf16_causal",
    "decode_b4_h4_kv2_q3_k5_d32_dv16_fp16_causal_varlen",  # rows of 0 and 1 keys
    "decode_b3_h4_kv2_q2_k37_d32_fp16_causal_w9_page8_varlen_sinks",
    "decode_b3_h2_kv2_q3_k3_d16_bf16_causal_page1_varlen_sinks",  # 1 to 3 keys
    "decode_b2_h6_kv2_q2_k40_d16_dv32_fp16_full_softcap_page16_sinks",
    "decode_b3_h4_kv2_q2_k37_d32_bf16_page8_varlen_sinks_e4m3cache",
    "decode_b2_h4_kv2_k21_d32_fp16_e4m3cache",
    "decode_b3_h4_kv1_q2_k37_d48_dv32_bf16_page8_varlen_mla",
    "decode_b2_h4_kv2_k21_d32_dv16_fp16_mla",
    "decode_b3_h4_kv2_q2_k61_d32_bf16_page8_varlen_prefix",
    "decode_b2_h4_kv2_k16_d32_fp16_page4_sinks_prefix",
)


@functools.cache
def probe(text: str) -> Probe:
    return Probe.of(Workload.parse(text), "mixed", "cpu", torch.float64)


def cached(workload: Workload, made: Any, place: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """The key and the value of (sequence, key, KV head), found one by one."""
    sequence, key, head = place
    if workload.page_size is not None:
        sequence, key = int(made[6][sequence, key // workload.page_size]), key % workload.page_size
    k, v = (each[sequence, head, key].double() for each in made[1:3])
    if workload.e4m3cache:
        k, v = k * made[-2][place[0], head], v * made[-1][place[0], head]
    return k, v


def plain(workload: Workload, made: Any) -> tuple[Tensor, Tensor]:
    """(out, lse): each row by itself, from the definition."""
    out, lse = made[3].double().zero_(), made[4].double().fill_(-math.inf)
    for sequence, head, row in torch.cartesian_prod(*map(torch.arange, lse.shape)).tolist():
        keys = workload.lengths[sequence][1]
        own = keys - workload.seqlen_q + row
        last = own if workload.causal else keys - 1
        first = 0 if workload.window_left is None else max(0, own - workload.window_left)
        seen = [cached(workload, made, (sequence, key, head // workload.group))
                for key in range(first, last + 1)]  # fmt: skip
        scores = [float(made[0][sequence, head, row].double() @ k) for k, _ in seen]
        scores = [each / workload.head_dim**0.5 for each in scores]
        if workload.softcap:
            scores = [check.SOFTCAP * math.tanh(each / check.SOFTCAP) for each in scores]
        total = sum(math.exp(each) for each in scores)
        for score, (_, v) in zip(scores, seen, strict=True):
            out[sequence, head, row] += math.exp(score) * v
        sinks = made[-3 if workload.e4m3cache else -1]
        total += math.exp(sinks[head]) if workload.sinks else 0.0
        if total:
            out[sequence, head, row] /= total
            lse[sequence, head, row] = math.log(total)
    return out, lse


@pytest.mark.parametrize("text", TEXTS)
def test_the_reference_is_a_softmax_of_each_row(text: str) -> None:
    made = probe(text)
    out, lse = plain(made.shape, made.tensors)
    torch.testing.assert_close(made.expected.out, out)
    torch.testing.assert_close(made.expected.lse, lse)
    keys = [keys for _, keys in made.shape.lengths]
    assert "varlen" not in text or len(set(keys)) == made.shape.batch


@pytest.mark.parametrize("text", TEXTS)
def test_the_rounded_softmax_passes(text: str) -> None:
    made = probe(text)
    for output, right in zip(made.outputs, plain(made.shape, made.tensors), strict=True):
        output.copy_(right)
    found = made.judge()
    assert found.passed and not found.strayed, found.reason
    assert all(bool(output.isnan().all()) for output in made.outputs), "outputs are NaN again"


def one_key_beyond(made: Any, out: Tensor, lse: Tensor) -> None:
    out[1, 0] += 0.0 * made[1][1, 0, -1, 0]  # NaN


def without_a_sink(made: Any, out: Tensor, lse: Tensor) -> None:
    out[2, 1] *= 1.0 + (made[-1][1].double() - lse[2, 1]).exp()[:, None]


def of_another_head(made: Any, out: Tensor, lse: Tensor) -> None:
    out[1, [0, 2]] = out[1, [2, 0]]


def one_row_of_zeros(made: Any, out: Tensor, lse: Tensor) -> None:
    out[0, 3, 1] = 0.0


def lse_in_bits(made: Any, out: Tensor, lse: Tensor) -> None:
    lse /= math.log(2)


FAULTS = [one_key_beyond, without_a_sink, of_another_head, one_row_of_zeros, lse_in_bits]


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


@pytest.mark.parametrize("text", TEXTS)
def test_all_but_a_sequence_s_own_keys_is_no_number(text: str) -> None:
    workload, made = Workload.parse(text), probe(text).tensors
    keys, behind = sum(keys for _, keys in workload.lengths), set()
    keys -= (workload.batch - 1) * workload.prefix_keys
    for cache, memory in zip(made[1:3], probe(text).memories[1:3], strict=True):
        columns = workload.head_dim if workload.mla else cache.shape[-1]  # v is in the memory of k
        assert int(memory.float().isfinite().sum()) == keys * workload.heads_kv * columns
        for sequence, (_, own) in enumerate(workload.lengths):
            tail = cache[sequence, :, own:]
            if workload.page_size is not None:
                pages = made[6][sequence].long()
                tail = as_indexed(cache)[pages].transpose(0, 1).flatten(1, 2)[:, own:]
                tail = tail.view(cache.dtype)
                behind |= set(pages[math.ceil(own / workload.page_size) :].tolist())
            assert tail.numel() == 0 or bool(tail.float().isnan().any())
            assert not tail.float().isfinite().any()
    assert len(behind) == (workload.page_size is not None and workload.varlen), "a spare page"
    assert bool(made[0].isfinite().all()) and made[5].tolist() == [n for _, n in workload.lengths]


def with_sinks(logit: float, factor: float) -> bool:
    """Whether rows pass that are `factor` times what they are, rounded to fp16, with such sinks."""
    workload = Workload.parse("decode_b2_h4_kv2_q2_k37_d32_fp16_causal_sinks")
    made, _ = op.inputs(workload, "normal", "cpu")
    made[-1][1] = logit
    expected = op.expected(workload, "normal", made, torch.float64)
    made[3].copy_(expected.out)
    made[3][:, 1] = (expected.out[:, 1] * factor).half()
    made[4].copy_(expected.lse)
    return expected.compare(*made[3:5]).passed


def test_a_row_of_which_the_sink_takes_all_may_be_0() -> None:
    least = 2.0**-24
    assert torch.tensor(least).half() > 0 and torch.tensor(least / 2).half() == 0
    halves = op.HALF_OF_LEAST["fp16"], op.HALF_OF_LEAST["bf16"]
    assert halves == (least / 2, 2.0**-133 / 2)
    assert with_sinks(30.0, 0.0), "numbers of about e-27 or less, which fp16 does not have"
    assert with_sinks(18.0, 1.0), "numbers that fp16 has few digits of"
    assert not with_sinks(12.0, 0.0) and not with_sinks(-30.0, 0.99)


@pytest.mark.parametrize("window", ["", "_w2000"])
def test_ragged_sequences_have_one_split_or_several(window: str) -> None:
    workload = Workload.parse(f"decode_b64_h32_kv4_q2_k32k{window}_page16_sinks")
    case = Case.from_names("attention_decode_triton", str(workload), "sm80")
    for split in (128, 256, 512, 1024):
        config = {**case.default(), "MIN_SPLIT_KEYS": split}
        small = op.ragged(workload, config)
        lengths = [keys for _, keys in small.lengths]
        assert min(lengths) < split < 2 * split < max(lengths)
        assert all(keys % 16 for keys in lengths), "no page and no block divides them"
        assert (small.group, small.seqlen_q, small.page_size) == (8, 2, 16)
        variants = [case.kernel.module.variant(each, config) for each in (workload, small)]
        assert variants[0]["constants"] == variants[1]["constants"]


def test_ragged_sequences_have_splits_whose_least_is_that_of_warps() -> None:
    workload = Workload.parse("decode_b64_h32_kv8_k32k")
    case = Case.from_names("attention_decode_cuda_sm90", str(workload), "sm90")
    for leaf, warps in ((64, 4), (512, 8), (128, 1)):
        small = op.ragged(workload, {**case.default(), "LEAF_KEYS": leaf, "num_warps": warps})
        lengths = [keys for _, keys in small.lengths]
        assert min(lengths) < leaf * warps < 2 * leaf * warps < max(lengths)


def test_the_limit_is_the_tolerance_of_the_dtype() -> None:
    made, gate = probe(TEXTS[1]), Gate("cpu")
    assert gate.limit(made) == 1e-3
    fast = replace(made, shape=replace(made.shape, accuracy="fast"))
    assert gate.limit(fast) == 8e-3
    assert op.limit(made.shape, "hostile", made.tensors, made.expected) == math.inf
