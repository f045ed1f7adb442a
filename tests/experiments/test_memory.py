"""Peak memory, by the sizes of tensors, and from a document with known figures."""

from __future__ import annotations

import pytest

from tunefa.experiments.document import MEASURED, Document
from tunefa.experiments.memory import EXPERIMENT, modelled_rows
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

H200 = Target.named("h200")


@pytest.mark.parametrize("length", [1024, 8192])
def test_the_sizes_by_hand(length: int) -> None:
    (row,) = modelled_rows(Workload.parse(f"b1_h1_q{length}_d64_fp16_full"), H200)
    assert row["scores_bytes"] == 2 * length * length
    output = 64 * 2 * length
    assert row["operators_bytes"] == 4 * length * length + output, "two matrices in fp16"
    assert row["tunefa_bytes"] == output and row["sdpa_bytes"] == output + length * 4, "lse"
    assert row["inputs_bytes"] + row["output_bytes"] == length * 64 * 2 * 4


def test_what_does_not_fit_is_out_of_memory_and_still_a_row() -> None:
    (row,) = modelled_rows(Workload.parse("b8_h32_q32768_d64_fp16_full"), H200)
    assert row["operators_bytes"] is None and row["tunefa_bytes"] > 0
    (table,) = EXPERIMENT.tables(Document("memory", "modelled", "sm90", "H200", [row]))
    assert table.rows[0][1] == "out of memory"


def test_claims_stand_beside_the_shape_that_they_are_for() -> None:
    rows = [
        row
        for shape in ("b1_h1_q1024_d64_fp16_full", "b4_h8_q1024_d64_fp16_full")
        for row in modelled_rows(Workload.parse(shape), H200)
    ]
    one, many = EXPERIMENT.tables(Document("memory", MEASURED, "sm90", "H200", rows))
    assert (one.rows[0][3], one.rows[0][7]) == ("8", "0.5")
    assert (many.rows[0][3], many.rows[0][7]) == ("–", "–")
    assert "S × 64 × 2 bytes × 4" in " ".join(one.remarks)
    assert "claimed" not in " ".join(many.remarks)
