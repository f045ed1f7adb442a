"""The cost of the mask, from a document with known times."""

from __future__ import annotations

from tunefa.experiments.causal import EXPERIMENT
from tunefa.experiments.document import MEASURED, Document

FULL = {
    "workload": "b4_h32_q2048_d64_fp16_full",
    "causal": False,
    "tunefa_us": 200.0,
    "sdpa_us": 400.0,
    "operators_us": 900.0,
}
CAUSAL = {
    "workload": "b4_h32_q2048_d64_fp16_causal",
    "causal": True,
    "tunefa_us": 120.0,
    "sdpa_us": 460.0,
    "operators_us": 1350.0,
}


def test_the_cost_is_relative_to_the_time_without_a_mask() -> None:
    (table,) = EXPERIMENT.tables(Document("causal", MEASURED, "sm90", "H200", [FULL, CAUSAL]))
    cost = {row[0]: row[3] for row in table.rows}
    assert cost["tunefa"] == "-40.0 %" and cost["SDPA"] == "+15.0 %"
    assert cost["PyTorch operators"] == "+50.0 %" and cost["visible pairs"] == "-50.0 %"
    assert "changes tunefa's time by -40.0 %" in " ".join(table.remarks)
    # Two passes over 4 x 32 x 2,048 x 2,048 scores of 2 bytes, read and written; and the mask.
    assert "4.3 GB more to move, in 450 us more" in " ".join(table.remarks)


def test_a_shape_with_one_mask_only_has_no_table() -> None:
    assert EXPERIMENT.tables(Document("causal", MEASURED, "sm90", "H200", [CAUSAL])) == []
