"""Every experiment in tunefa/experiments/: its tables, plots and files."""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.pictures import drawn, empty, pixels
from tunefa.errors import TunefaError
from tunefa.experiments import experiment as experiments
from tunefa.experiments import figure, tile_grid
from tunefa.experiments import run as runs
from tunefa.experiments.document import Document
from tunefa.experiments.experiment import Experiment
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

NAMES = experiments.names()
KNOWN = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def few_compilations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles one config of one tile only: all of them take half a minute."""
    monkeypatch.setattr(tile_grid, "MOST_COMPILED", 1)
    monkeypatch.setattr(tile_grid, "CANDIDATES", 1)


@functools.cache
def modelled(experiment: Experiment, chip: str = "h200", points: int = 2) -> Document:
    """The results of an experiment's first points for a chip."""
    workloads = [Workload.parse(point) for point in experiment.points[:points]]
    return runs.run(experiment, workloads, Target.named(chip), None, lambda *_: None)


@KNOWN
def test_it_says_what_it_asks(name: str) -> None:
    experiment = experiments.load(name)
    assert experiment.name == name
    assert experiment.question.endswith(("?", ".")) and experiment.question[0].isupper()
    assert [str(Workload.parse(point)) for point in experiment.points]


@KNOWN
def test_its_results_are_the_same_from_a_file(name: str, tmp_path: Path) -> None:
    experiment = experiments.load(name)
    document = modelled(experiment)
    path = tmp_path / "results.json"
    document.save(path)
    again = Document.load(path)
    assert again == replace(document, rows=json.loads(json.dumps(document.to_data()))["rows"])
    assert experiment.tables(again) == experiment.tables(document)
    assert not document.is_measured and "MODELLED" in document.origin


@KNOWN
def test_its_tables_are_whole(name: str) -> None:
    experiment = experiments.load(name)
    for table in experiment.tables(modelled(experiment)):
        assert table.rows and all(len(row) == len(table.head) for row in table.rows)
        assert len(set(table.head)) == len(table.head), "the columns have names of their own"
        assert table.words <= set(table.head)
        assert all(remark.endswith((".", ":")) for remark in table.remarks), table.remarks
        lines = table.markdown().splitlines()
        assert len(lines) >= len(table.rows) + 2


@KNOWN
def test_its_plot_is_no_empty_picture(name: str, tmp_path: Path) -> None:
    experiment = experiments.load(name)
    found = drawn(experiment, modelled(experiment), tmp_path / "plot.png")
    figure.save_png(empty, tmp_path / "empty.png")
    assert found.shape == pixels(tmp_path / "empty.png").shape
    ink = (np.abs(found - pixels(tmp_path / "empty.png")).max(axis=2) > 0.1).mean()
    assert ink > 0.01, f"{ink:.2%} of the picture is drawn"
    text = figure.svg(experiment.plot(modelled(experiment)))
    assert text.startswith("<svg") and "var(--ink)" in text


@KNOWN
def test_a_number_that_is_changed_changes_table_and_plot(name: str, tmp_path: Path) -> None:
    experiment = experiments.load(name)
    document = modelled(experiment)
    changed = replace(document, rows=_changed(document.rows))
    assert experiment.tables(changed) != experiment.tables(document)
    pictures = [
        drawn(experiment, each, tmp_path / f"{place}.png")
        for place, each in enumerate((document, changed))
    ]
    assert (np.abs(pictures[0] - pictures[1]) > 0.1).any()


def _changed(rows: Any) -> Any:
    """The rows, with tunefa's figures (or if there are none, all figures) larger, each by another
    factor."""
    made = copy.deepcopy(list(rows))
    numbers = [
        (row, key)
        for row in made
        for key, value in row.items()
        if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool))
    ]
    own = [(row, key) for row, key in numbers if key.startswith("tunefa_")]
    for place, (row, key) in enumerate(own or numbers):
        row[key] = type(row[key])(row[key] * (1.5 + 0.25 * place))
    return made


@KNOWN
def test_a_point_that_fails_and_figures_that_are_missing_are_shown(
    name: str, tmp_path: Path
) -> None:
    experiment = experiments.load(name)
    document = modelled(experiment)
    bare = [
        {key: None if key.startswith(("tunefa_", "sdpa_")) else value for key, value in row.items()}
        for row in document.rows[:1]
    ]
    failed = {"workload": experiment.points[-1], "error": "the device ran out of patience"}
    partial = replace(document, rows=[*document.rows[1:], *bare, failed])
    said = [remark for table in experiment.tables(partial) for remark in table.remarks]
    assert any("ran out of patience" in remark for remark in said), said
    drawn(experiment, partial, tmp_path / "partial.png")


@KNOWN
@pytest.mark.parametrize("chip", ["a100", "orin", "rtx 5090", "ascend910b3"])
def test_other_chips_are_modelled_too(name: str, chip: str) -> None:
    experiment = experiments.load(name)
    try:
        document = modelled(experiment, chip, points=1)
    except TunefaError as error:  # a point that the chip cannot have, in one sentence
        assert "\n" not in str(error)
        return
    assert document.arch == Target.named(chip).arch.name and experiment.tables(document)
