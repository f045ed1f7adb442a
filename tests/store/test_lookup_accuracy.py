"""tunefa/store/lookup.py: no call gets a config that is less exact than it asked for."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.fake_kernel import FakeKernel
from tests.support.fixed_store import Fixed
from tests.support.sample_records import measured
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store.lookup import Choice, lookup
from tunefa.store.record import Record

FAST = measured("fwd_q4096_fast", median_us=0.5)
EXACT = measured("fwd_q4096", median_us=900.0)
NEAREST = measured("fwd_q8192", median_us=1.0)


def ask(records: Sequence[Record], workload: str) -> Choice:
    target = Target.named("h200")
    return lookup(Fixed(records), Workload.parse(workload), target, [FakeKernel()])


def test_a_fast_record_serves_no_call_that_did_not_ask() -> None:
    assert ask([FAST, NEAREST], "fwd_q4096").record == NEAREST
    assert ask([FAST], "fwd_q4096").how == "default"


def test_a_fast_call_gets_fast_records_first_and_more_exact_ones_else() -> None:
    found = ask([EXACT, NEAREST, FAST], "fwd_q4096_fast")
    assert (found.record, found.how) == (FAST, "exact")
    found = ask([NEAREST, EXACT], "fwd_q4096_fast")
    assert (found.record, found.how, found.octaves) == (EXACT, "nearest", 0.0)
