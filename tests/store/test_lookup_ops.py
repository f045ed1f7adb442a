"""tunefa/store/lookup.py: records of one op never serve another."""

from __future__ import annotations

import math

import pytest

from tests.support.fixed_store import Fixed
from tests.support.sample_records import measured, predicted
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store.distances import distance
from tunefa.store.exports import flex
from tunefa.store.lookup import by_trust, lookup
from tunefa.store.record import Record

H200 = Target.named("h200")
KERNEL = kernels.load("matmul_triton")
CONFIG = KERNEL.default(Workload.parse("matmul_m4096"), H200.arch)


def product(text: str, median_us: float = 500.0) -> Record:
    return measured(text, kernel=KERNEL.name, config=CONFIG, median_us=median_us)


TRITON = kernels.load("attention_fwd_triton")
ATTENTION = measured(
    "fwd_q4096",
    kernel=TRITON.name,
    config=TRITON.default(Workload.parse("fwd_q4096"), H200.arch),
)
RECORDS = [ATTENTION, product("matmul_m4096"), product("matmul_m8192", 4000.0)]


@pytest.mark.parametrize(
    ("text", "how", "octaves"),
    [
        ("matmul_m4096", "exact", 0.0),
        ("matmul_m4096_fp16", "nearest", 0.0),
        ("matmul_m8192_n8192_k4096", "nearest", 1.0),
        ("matmul_m4096_nt", "default", 0.0),
        ("matmul_m4096_fp32", "default", 0.0),
        ("matmul_m64_n64_k64", "default", 0.0),
    ],
)
def test_a_product_gets_the_record_of_the_nearest_product(
    text: str, how: str, octaves: float
) -> None:
    found = lookup(Fixed(RECORDS), Workload.parse(text), H200, [KERNEL])
    assert (found.how, found.octaves, found.kernel) == (how, octaves, KERNEL.name)


def test_ops_are_infinitely_far_apart() -> None:
    one, other = (record.workload for record in RECORDS[:2])
    assert distance(one, other) == distance(other, one) == math.inf
    for workload in (one, other):
        ranked = by_trust(RECORDS, workload, H200)
        assert ranked and {record.workload.op for record in ranked} == {workload.op}


def test_no_kernel_of_attention_serves_a_product() -> None:
    with pytest.raises(TunefaError, match="it computes fwd, not matmul"):
        lookup(Fixed(RECORDS), Workload.parse("matmul_m4096"), H200, [TRITON])
    found = lookup(Fixed(RECORDS), Workload.parse("fwd_q4096"), H200, [KERNEL, TRITON])
    assert (found.how, found.record) == ("exact", ATTENTION)


def test_a_record_of_a_product_reads_back() -> None:
    for made in (RECORDS[1], predicted("matmul_m64_n32_k16_fp32_tt", kernel=KERNEL.name)):
        assert Record.from_dict(made.to_dict()) == made


def test_options_of_flex_attention_hold_attention_alone() -> None:
    assert flex.holds(ATTENTION) and not flex.holds(RECORDS[1])
    assert "left out, it is of the op matmul: matmul_m4096" in flex.dump(RECORDS)
