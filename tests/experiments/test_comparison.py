"""tunefa/experiments/comparison.py: the arithmetic of the table, and what is said below it."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from tests.support import sample_comparison as sample
from tunefa.cli.reports import experiment as reports
from tunefa.errors import TunefaError
from tunefa.experiments import comparison, figure
from tunefa.experiments.document import Document


def test_the_rows_are_sorted_by_time_and_hold_every_figure() -> None:
    (table,) = comparison.tables(sample.document())
    assert table.title == str(sample.WORKLOAD)
    # 4e10 FLOPs in 100 us are 400 TFLOP/s, 80 % of 500; 8.04 MB are 80 GB/s, 2 % of 4,000.
    assert table.rows == [
        ("tunefa", "100.0", "2.0%", "400", "80", "80%", "2%", "2.2e-3", "1.4e-2"),
        ("flash-attn-4*", "160.0", "2.0%", "250", "50", "50%", "1%", "2.2e-3", "1.4e-2"),
        ("SDPA", "200.0", "2.0%", "200", "40", "40%", "1%", "2.2e-3", "1.4e-2"),
    ]


def test_what_is_said_below() -> None:
    (table,) = comparison.tables(sample.document())
    assert table.remarks == [
        "over the best peer: 1.600 (tunefa's speed over that of flash-attn-4)",
        "tunefa ran k BLOCK_N=64 (the default)",
        "ceilings of this run: matmul 500.0 TFLOP/s (bf16), copy 4,000 GB/s",
        "device meanwhile: 1605–1980 MHz",
        "* not captured in a CUDA graph: the longer of the device's and host's times",
        "left out: SDPA cuDNN and SDPA efficient: it has no soft-cap",
    ]


def test_power_is_said_where_the_calls_took_long_enough_to_read_it() -> None:
    document = sample.document()
    document.rows[0]["scores"]["sdpa"]["samples_us"] = [3e5, 3e5]
    (table,) = comparison.tables(document)
    assert "device meanwhile: 1605–1980 MHz, up to 700 W" in table.remarks


def test_a_number_that_is_changed_changes_the_table() -> None:
    document = sample.document()
    document.rows[0]["scores"]["sdpa"]["samples_us"] = [50.0]
    document.rows[0]["ceilings"]["matmul_tflops"] = 1000.0
    (table,) = comparison.tables(document)
    assert table.rows[0][:6] == ("SDPA", "50.0", "0.0%", "800", "161", "80%")
    assert table.remarks[0].startswith(
        "over the best peer: 0.500 (tunefa's speed over that of SDPA"
    )


def test_the_sentence_about_several_workloads() -> None:
    rows = [sample.row(tunefa=100.0, fa4=us) for us in (200.0, 50.0)] + [sample.row(tunefa=1.0)]
    said = comparison.summary(sample.document(*rows))
    assert said[0] == (
        "tunefa is ahead at 1 of 2 workloads. Its speed over that of the best peer: 1.000 in the "
        "geometric mean (0.500 to 2.000)."
    )
    assert said[1] == "absent: FlashAttention-3: fa3-fwd is not installed: pip install fa3-fwd"


def test_where_tunefa_or_all_peers_are_missing_there_is_no_ratio() -> None:
    for document in (sample.document(sample.row(tunefa=1.0)), sample.document(sample.row(fa4=1.0))):
        (table,) = comparison.tables(document)
        assert not any("over the best peer" in remark for remark in table.remarks)


def test_without_ceilings_and_state_there_are_dashes() -> None:
    row = {**sample.row(tunefa=100.0), "ceilings": None, "ran": None, "device": {"watched": False}}
    (table,) = comparison.tables(sample.document(row))
    assert table.rows[0][5:7] == ("–", "–")
    assert table.remarks == ["left out: SDPA cuDNN and SDPA efficient: it has no soft-cap"]


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (Document("scaling", "measured", "sm90", "H200", []), "tunefa bench scaling --from f.json"),
        (sample.document({"workload": "q64"}), "f.json: the contest has missing or wrong fields"),
        (sample.document({**sample.row(fa4=1.0), "ceilings": {}}), "f.json: the ceilings of"),
        (sample.document({**sample.row(fa4=1.0), "ceilings": 3}), "f.json: the ceilings of"),
        (sample.document({**sample.row(fa4=1.0), "ran": 3}), "f.json has missing or wrong fields"),
        (
            sample.document({**sample.row(fa4=1.0), "device": {"watched": True}}),
            "f.json has missing or wrong",
        ),
    ],
)
def test_what_is_no_comparison_is_a_users_mistake(document: Document, says: str) -> None:
    with pytest.raises(TunefaError) as raised:
        comparison.check(document, "f.json")
    assert says in str(raised.value)


def paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in plain data, outermost first."""
    children = dict(enumerate(node)) if isinstance(node, list) else node
    for key, value in children.items() if isinstance(children, dict) else ():
        yield (*path, key)
        yield from paths(value, (*path, key))


WHOLE = json.loads(json.dumps(sample.document().to_data()))


@pytest.mark.parametrize("path", list(paths(WHOLE)), ids=lambda path: ".".join(map(str, path)))
def test_a_damaged_value_is_shown_or_is_a_users_mistake(path: tuple[Any, ...]) -> None:
    for value in (None, 3, "x", [], {}, [1, "a"], {"a": 1}, float("inf")):
        data = copy.deepcopy(WHOLE)
        place = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        with contextlib.suppress(TunefaError):
            document = Document.from_data(data, "f.json")
            comparison.check(document, "f.json")
            reports.show_comparison(document, Console(file=io.StringIO()))


def test_the_plot_has_every_contestant_where_it_is_timed() -> None:
    """4e10 FLOPs in 100 us are 400 TFLOP/s, and in 200 us 200."""
    canvas = Figure()
    comparison.draw(sample.document(sample.row(tunefa=100.0), sample.row(fa4=200.0)), canvas)
    (axes,) = canvas.axes
    drawn = {line.get_label(): np.asarray(line.get_xydata()).tolist() for line in axes.lines}
    assert drawn.keys() == {"tunefa", "flash-attn-4"}
    assert drawn["tunefa"] == [[pytest.approx(400.0), 0]]
    assert drawn["flash-attn-4"] == [[pytest.approx(200.0), 1]]


def test_the_plot_takes_any_name_and_no_rows() -> None:
    odd = sample.row(tunefa=100.0)
    odd["scores"]["$\\frac{ $<b>"] = odd["scores"]["tunefa"]
    for rows in ([odd], []):
        document = replace(sample.document(), rows=rows)
        assert "<svg" in figure.svg(partial(comparison.draw, document))
