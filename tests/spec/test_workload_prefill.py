"""tunefa/spec/workload.py with the op `prefill`: packed queries over a cache with pages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefa.errors import TunefaError
from tunefa.spec.workload import Workload

TEXT = "prefill_b4_h32_kv8_q512_k4096_d128_bf16_causal_page64_varlen"


def test_pages_without_another_op_are_prefill() -> None:
    assert str(Workload.parse("b4_q512_k4096_page64_varlen")) == TEXT
    assert str(Workload.parse(TEXT)) == TEXT
    assert Workload.of(seqlen_q=512, page_size=16).op == "prefill"
    assert Workload.of(op="decode", seqlen_k=512, page_size=16).op == "decode"
    with pytest.raises(TunefaError, match="page_size is missing"):
        Workload.parse("prefill_q512")


def test_queries_are_packed_whether_lengths_differ_or_not() -> None:
    workload = Workload.parse(TEXT)
    assert workload.is_packed and replace(workload, varlen=False).is_packed
    assert Workload.parse("q64_varlen").is_packed and not Workload.parse("q64").is_packed
    assert not Workload.parse("decode_k64_varlen").is_packed


def test_both_lengths_differ() -> None:
    workload = Workload.parse(TEXT)
    assert sorted(workload.lengths) == [(128, 1024), (256, 2048), (384, 3072), (512, 4096)]
    assert workload.rows_and_keys == (1280, 10240)
    equal = replace(workload, varlen=False)
    assert equal.lengths == [(512, 4096)] * 4


def test_the_work_is_that_of_packed_sequences() -> None:
    """The same products as without pages; the bytes of an e4m3 cache are half as many."""
    workload, plain = Workload.parse(TEXT), Workload.parse("b4_q512_k4096_varlen")
    assert workload.flops == plain.flops and workload.io_bytes == plain.io_bytes
    windowed = replace(workload, window_left=99)
    assert windowed.rows_and_keys == (1280, 1280 + 4 * 99), "keys that some query sees"
    in_e4m3 = replace(workload, e4m3cache=True)
    assert workload.io_bytes - in_e4m3.io_bytes == 8 * 10240 * 256
