"""Speed-ups by length, from a document with known times."""

from __future__ import annotations

import pytest

from tunefa.experiments.document import MEASURED, Document
from tunefa.experiments.scaling import EXPERIMENT

ROWS = [
    {
        "workload": f"b4_h8_q{length}_d64_fp16_causal",
        "tunefa_us": us,
        "operators_us": 5 * us,
        "sdpa_us": 2 * us,
    }
    for length, us in ((512, 10.0), (1024, 30.0))
]
DOCUMENT = Document("scaling", MEASURED, "sm90", "NVIDIA H200", ROWS)


def test_speed_ups_and_rates() -> None:
    (table,) = EXPERIMENT.tables(DOCUMENT)
    assert table.title == "batch 4, 8 heads, head_dim 64, fp16, causal"
    cells = dict(zip(table.head, table.rows[1], strict=True))
    assert cells["S"] == "1,024" and cells["over\noperators"] == "5.00×"
    flops = 4 * 4 * 8 * 64 * (1024 * 1025 / 2)  # visible pairs only
    assert float(cells["tunefa\nTFLOP/s"]) == pytest.approx(flops / 30.0 / 1e6, abs=0.05)


def test_it_says_how_causal_flops_are_counted_and_what_is_claimed() -> None:
    said = " ".join(EXPERIMENT.tables(DOCUMENT)[-1].remarks)
    assert "visible (query, key) pairs" in said and "2.7× to 8.6×" in said
    assert "here it is 5.0× to 5.0×" in said


def test_shapes_have_tables_of_their_own() -> None:
    more = {**ROWS[0], "workload": "b4_h32_q512_d64_fp16_full"}
    found = EXPERIMENT.tables(Document("scaling", MEASURED, "sm90", "H200", [*ROWS, more]))
    assert [len(table.rows) for table in found] == [2, 1]
    assert not found[0].remarks and found[1].remarks
