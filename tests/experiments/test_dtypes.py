"""Times and errors by dtype, from a document with known figures."""

from __future__ import annotations

from tunefa.experiments.document import MEASURED, Document
from tunefa.experiments.dtypes import EXPERIMENT, modelled_rows
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload


def row(dtype: str, us: float, error: float) -> dict[str, object]:
    """The row of one dtype."""
    figures = {"tunefa_us": us, "tunefa_error": error, "tunefa_worst_row": 2 * error}
    return {"workload": f"b4_h16_q4096_d128_{dtype}_causal", **figures}


def test_dtypes_stand_from_the_widest_to_the_narrowest() -> None:
    rows = [row("e4m3", 300.0, 2e-2), row("fp32", 5000.0, 3e-7), row("bf16", 400.0, 3e-3)]
    (table,) = EXPERIMENT.tables(Document("dtypes", MEASURED, "sm90", "H200", rows))
    assert [line[0] for line in table.rows] == ["fp32", "bf16", "e4m3"]
    assert table.rows[1][1:6] == ["400.0", "687.4", "–", "3.0e-03", "6.0e-03"]


def test_flash_attention_2_has_no_fp32_and_no_e4m3() -> None:
    target = Target.named("h200")
    for dtype, has in (("fp16", True), ("fp32", False), ("e4m3", False)):
        (found,) = modelled_rows(Workload.parse(f"b4_h16_q4096_d128_{dtype}_causal"), target)
        assert (found["sdpa_us"] is not None) == has
