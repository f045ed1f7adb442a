"""tunefa/cli/looked_up_notes.py: what is said where calls look another workload up."""

from __future__ import annotations

import pytest

from tunefa.cli import looked_up_notes
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

H200 = Target.named("h200")
USUAL = Workload.parse("decode_b16_h32_kv8_k8192")
SMALL, LONG, FEW = map(Workload.parse, ("decode_b1_k1024", "decode_b8_k131072", "b1_q1_k4096"))


def test_a_search_whose_record_other_calls_get_says_so() -> None:
    said = looked_up_notes.of_search(SMALL, H200)
    assert said.startswith(f"{SMALL}: attention over a cache runs one config for all batches and ")
    assert f"It is looked up for {USUAL}. A record of {SMALL} serves calls only if none is" in said
    assert said.endswith(" search with --batch-variant.")


def test_a_search_that_would_slow_calls_down_says_so() -> None:
    said = looked_up_notes.of_search(FEW, H200)
    assert "flash_attention runs so few queries over so many keys as attention over a cache" in said
    assert said.endswith(
        f"A record that is measured for {FEW} on this device ends that: search {USUAL} instead."
    )


@pytest.mark.parametrize(
    "text", ["q4096", str(USUAL), "decode_b1_k1024_batchvariant", "matmul_m64_n64_k64"]
)
def test_nothing_is_said_of_others(text: str) -> None:
    assert not looked_up_notes.of_search(Workload.parse(text), H200)


def test_nothing_is_said_on_an_npu() -> None:
    assert not looked_up_notes.of_search(FEW, Target.named("ascend910b3"))


def test_one_search_for_several_workloads_says_so() -> None:
    one, many = looked_up_notes.of_several({USUAL: [SMALL, FEW, LONG]})[::-1]
    assert many.startswith(f"{SMALL} and 1 more are searched as {USUAL}: attention over a cache ")
    assert one.startswith(f"{FEW} is searched as {USUAL}: flash_attention runs so few queries ")
    assert not looked_up_notes.of_several({})
