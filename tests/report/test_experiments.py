"""tunefa/report/experiments.py: the experiments in a folder, and comparisons with peers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import sample_comparison, sample_report
from tunefa.experiments.document import Document, Row
from tunefa.experiments.table import Table
from tunefa.report import experiments
from tunefa.report.content import Content
from tunefa.report.part import Plot


def test_an_experiment_has_its_question_origin_plot_and_tables() -> None:
    (part,) = experiments.section(Content(experiments=[sample_report.scaling()])).parts
    question, origin, plot, table, *_ = part.blocks
    assert part.title == "scaling, NVIDIA H200 (sm90), measured"
    assert isinstance(question, str) and question.endswith("?")
    assert isinstance(origin, str) and origin.startswith("Origin: measured on NVIDIA H200")
    assert origin.endswith("Made with torch 2.11.")
    assert isinstance(plot, Plot) and isinstance(table, Table)


def test_a_row_that_failed_is_said() -> None:
    document = sample_report.scaling()
    rows = [*document.rows, {"workload": "b4_h8_q1024_d64_fp16_causal", "error": "out of memory"}]
    (part,) = experiments.section(Content(experiments=[replace(document, rows=rows)])).parts
    assert "b4_h8_q1024_d64_fp16_causal: out of memory" in part.blocks


@pytest.mark.parametrize("row", [{"workload": 3}, {}, {"workload": "q512", "tunefa_us": "x"}])
def test_rows_of_another_kind_are_one_sentence(row: Row) -> None:
    document = replace(sample_report.scaling(), rows=[row])
    section = experiments.section(Content(experiments=[document, sample_report.scaling()]))
    (said,) = section.remarks
    assert said.startswith("The results of scaling (measured on NVIDIA H200 (sm90)")
    assert len(section.parts) == 1


def test_an_experiment_that_is_not_known_is_named() -> None:
    other = Document("telepathy", "measured", "sm90", "NVIDIA H200", [])
    section = experiments.section(Content(experiments=[other]))
    (said,) = section.remarks
    assert "unknown experiment 'telepathy'" in said
    assert section.empty == "The folder of experiments has none that can be shown."


def test_comparisons_have_their_own_section() -> None:
    content = Content(experiments=[sample_comparison.document(), sample_report.scaling()])
    (part,) = experiments.peers(content).parts
    assert part.title == "compare, NVIDIA H200 (sm90), measured"
    plot, table = part.blocks[1:3]
    assert isinstance(plot, Plot) and isinstance(table, Table)
    assert [part.title[:7] for part in experiments.section(content).parts] == ["scaling"]


@pytest.mark.parametrize("rows", [[{"workload": "q64"}], [{}]])
def test_a_damaged_comparison_is_one_sentence(rows: list[Row]) -> None:
    document = replace(sample_comparison.document(), rows=rows)
    section = experiments.peers(Content(experiments=[document]))
    assert not section.parts and len(section.remarks) == 1


def test_a_comparison_without_workloads() -> None:
    document = replace(sample_comparison.document(), rows=[])
    (part,) = experiments.peers(Content(experiments=[document])).parts
    assert list(part.blocks) == ["This comparison has no workloads."]


def test_no_folder_and_an_empty_one_are_different() -> None:
    said = {"experiments": ["There are no JSON documents."]}
    for section in (experiments.section, experiments.peers):
        assert "--experiments" in section(Content()).empty
        assert section(Content(remarks=said)).empty.startswith("The folder of experiments has")
