"""tunefa/report/winners.py: the figures of each winner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.sample_records import dated, measured, predicted
from tunefa.experiments.table import Table
from tunefa.report import winners
from tunefa.report.content import Content
from tunefa.spec.target import Target
from tunefa.store.record import Record


def tables(*records: Record) -> list[Table]:
    section = winners.section(Content(records=records))
    return [block for part in section.parts for block in part.blocks if isinstance(block, Table)]


def row(record: Record) -> dict[str, str]:
    times, configs = tables(record)
    found = dict(zip(times.head, times.rows[0], strict=True))
    return {**found, **dict(zip(configs.head, configs.rows[0], strict=True))}


def test_a_row_has_every_figure() -> None:
    found = row(measured("b4_h32_q4096_d128_bf16_full", median_us=1000.0, tflops=274.9))
    assert found["time\nus"] == "1,000.0" and found["TFLOP/s"] == "274.9"
    # 4 * 4 * 32 * 4096^2 * 128 = 1.0995e12 FLOPs, of which an H200 does 989.4e12 a second.
    assert found["share of roofline\n%"] == "111.1"
    assert found["bound by"] == "tensor cores"
    assert found["origin"] == "measured, graph" and found["date"] == "2025-01-31"
    assert found["config"].startswith("BLOCK_M=128 BLOCK_N=64 num_warps=8")
    assert found["made with"] == "tunefa 0.1.0, triton 3.7.1"


def test_a_prediction_says_so_and_has_its_interval() -> None:
    record = predicted(median_us=100.0, provenance=dated("2026-01-31", predicted_sd=0.1))
    found = row(record)
    assert found["time\nus"] == "100.0 (85 to 118)"
    assert found["origin"] == "predicted"
    (part,) = winners.section(Content(records=[record])).parts
    assert part.title == "sm90, predicted"


def test_a_chip_that_is_not_known_has_no_roofline() -> None:
    record = measured(device="NVIDIA Z9", arch="sm999")
    assert winners.target_of(record) is None and winners.bounds(record) is None
    assert row(record)["share of roofline\n%"] == "–"


def test_the_roofline_is_that_of_the_records_device() -> None:
    for device in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        found = winners.target_of(measured(device=device))
        assert found == Target.named(device)


def test_each_chip_has_its_own_part() -> None:
    records = [measured("q8192"), measured("q1024"), measured(device="NVIDIA H100 80GB HBM3")]
    found = winners.by_chip([*records, predicted()])
    assert [name for name, _ in found] == [
        "NVIDIA H100 80GB HBM3 (sm90), measured",
        "NVIDIA H200 (sm90), measured",
        "sm90, predicted",
    ]
    assert [each.workload.seqlen_q for each in found[1][1]] == [1024, 8192]


@pytest.mark.parametrize("version", [None, 3, "<b>"])
def test_any_version_is_shown(version: object) -> None:
    made = {**measured().provenance, "torch": version}
    found = row(replace(measured(), provenance=made))["made with"]
    assert (f"torch {version}" in found) == (version is not None)


def test_an_empty_store_is_said_to_be_so() -> None:
    section = winners.section(Content())
    assert not section.parts and "tunefa search" in section.empty
