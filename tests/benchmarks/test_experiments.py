"""The page docs/experiments.md: made from JSON, and the one in docs/ is what they give."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import experiments as pages
from tests.support.tree import TREE
from tunefa.experiments import compare
from tunefa.experiments import experiment as experiments
from tunefa.experiments.document import Document

KEPT = {path.stem: Document.load(path) for path in sorted((TREE / pages.FOLDER).glob("*.json"))}


def test_the_page_is_what_the_results_give() -> None:
    assert (TREE / pages.PAGE).read_text(encoding="utf-8") == pages.page(KEPT), (
        "run python -m benchmarks.experiments"
    )


def test_every_experiment_has_results_and_a_plot() -> None:
    assert set(KEPT) == {compare.NAME, *experiments.names()}
    for name in KEPT:
        assert (TREE / pages.FOLDER / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_number_that_is_changed_changes_the_page() -> None:
    document = KEPT["memory"]
    rows = [{**document.rows[0], "tunefa_bytes": 123 * 2**20}, *document.rows[1:]]
    page = pages.page({**KEPT, "memory": replace(document, rows=rows)})
    assert "123.0" in page and page != pages.page(KEPT)
