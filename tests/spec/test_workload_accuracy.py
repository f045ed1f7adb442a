"""The accuracy that a workload of tunefa/spec/workload.py asks for, in text and in records."""

from __future__ import annotations

import pytest

from tests.support.sample_records import measured
from tunefa.errors import TunefaError
from tunefa.spec.workload import Workload
from tunefa.store.record import Record


def test_the_default_is_not_written() -> None:
    text = "fwd_b1_h32_kv8_q9_k9_d128_bf16_causal"
    assert str(Workload.parse("q9")) == str(Workload.parse("q9_standard")) == text
    fast = Workload.parse("fast_softcap_q9")
    assert str(fast) == f"{text}_softcap_fast" and fast.accuracy == "fast"
    assert Workload.parse(str(fast)) == fast != Workload.parse("softcap_q9")


def test_a_record_keeps_it_in_its_workload() -> None:
    for text, accuracy in (("fwd_q9", "standard"), ("fwd_q9_fast", "fast")):
        data = measured(text).to_dict()
        assert "accuracy" not in data and data["workload"].endswith("fast") == (accuracy == "fast")
        assert Record.from_dict(data).workload.accuracy == accuracy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q9_fast_standard", "'standard' gives accuracy a second time: leave one out"),
        ("q9_fats", "unknown part 'fats': did you mean fast?"),
    ],
)
def test_parse_explains_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(TunefaError) as raised:
        Workload.parse(text)
    assert message in str(raised.value)


def test_an_unknown_accuracy_is_refused() -> None:
    with pytest.raises(TunefaError, match=r"unknown accuracy 'exact' \(known: standard, fast\)"):
        Workload.of(seqlen_q=9, accuracy="exact")
