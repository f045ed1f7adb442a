"""tunefa/store/lookup.py: records whose bits depend on the batch serve workloads that allow it."""

from __future__ import annotations

import pytest

from tests.support.fixed_store import Fixed
from tests.support.sample_records import measured
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store.lookup import lookup
from tunefa.store.record import Record

H200 = Target.named("h200")
OWN, LIBRARY = (kernels.load(f"attention_decode_{name}") for name in ("cuda_sm90", "fa2"))


def record(kernel: kernels.Kernel, text: str) -> Record:
    workload = Workload.parse(f"decode_{text}")
    config = kernel.default(workload, H200.arch)
    return measured(f"decode_{text}", kernel=kernel.name, config=config)


INVARIANT = record(OWN, "b16_k8192")
FREE = record(LIBRARY, "b64_k4096_batchvariant")


@pytest.mark.parametrize(
    ("text", "found", "how"),
    [
        ("b16_k8192", INVARIANT, "exact"),
        ("b64_k4096", INVARIANT, "nearest"),
        ("b64_k4096_batchvariant", FREE, "exact"),
        ("b32_k4096_batchvariant", FREE, "nearest"),
        ("b16_k8192_batchvariant", INVARIANT, "nearest"),
        ("b1_k512_batchvariant", None, "default"),
    ],
)
def test_the_record_of_a_library_serves_only_where_bits_are_free(
    text: str, found: Record | None, how: str
) -> None:
    chosen = lookup(
        Fixed([INVARIANT, FREE]), Workload.parse(f"decode_{text}"), H200, [OWN, LIBRARY]
    )
    assert (chosen.record, chosen.how) == (found, how)


def test_without_records_the_own_kernel_comes_first() -> None:
    workload = Workload.parse("decode_b64_k4096_batchvariant")
    assert lookup(Fixed([]), workload, H200, [LIBRARY, OWN]).kernel == OWN.name
