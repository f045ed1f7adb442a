"""benchmarks/model.py: the tables of docs/model.md are what it writes for landscapes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import markdown, model
from tunefa.costmodel import learning, training_rows
from tunefa.costmodel.accuracy import Predictor
from tunefa.costmodel.training_rows import Row

SMALL = (
    "nvidia-h200--*_b4_h8_*_d256_*--attention_fwd_gluon_sm90*",
    "nvidia-h200--*_b4_h10_*_d192_*--attention_fwd_gluon_sm90*",
)
PARTS = {"chips", "rows", "errors", "workloads", "devices"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of a fortieth of the trees."""
    monkeypatch.setattr(learning, "MEMBERS", 1)
    monkeypatch.setattr(learning, "ITERATIONS", 10)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Every other config of two small landscapes."""
    files = [path for name in SMALL for path in (model.LANDSCAPES / "sampled").glob(name)]
    assert len(files) == 2
    return [*training_rows.read(files).rows][::2]


def told(rows: Sequence[Row]) -> Predictor:
    """A model that knows every time; it fails a row that it has learned from."""
    seen = {id(row) for row in rows}

    def predictor(own: Sequence[Row]) -> list[float]:
        assert not seen & {id(row) for row in own}
        return [row.time_us or 0.0 for row in own]

    return predictor


def test_what_is_compared_was_held_out(rows: list[Row]) -> None:
    first, second = model.compared(rows, model.by_workload, told)
    assert first.workload.head_dim == 192 and second.workload.head_dim == 256
    for each in (first, second):
        assert each.learned.best_tenth == pytest.approx(1.0) and each.learned.error == 0.0
        assert each.analytic.error > 0.01 and each.analytic.rank_correlation < 1.0


def test_a_real_model_fills_every_part_and_always_the_same(rows: list[Row]) -> None:
    made, again = (model.parts(rows, model.compared(rows, model.by_workload)) for _ in range(2))
    assert made.keys() == PARTS and made == again
    noise = re.search(
        r"\| attention_fwd_gluon_sm90 \| NVIDIA H200 \| 2 \| 116 \| 0 \| ([\d.]+) % \|\n$",
        made["rows"],
    )
    assert noise is not None and 0.1 < float(noise[1]) < 3.0
    assert re.search(r"^\| sm90 \(.*\) \| NVIDIA H200 \(2\) \| 2 \| [\d.]+ % ", made["chips"], re.M)
    assert "| sm80 (NVIDIA A100-SXM4-80GB) | never: published figures only | 0 |" in made["chips"]
    assert "one device" in made["devices"]
    for name in ("errors", "workloads"):
        assert len(made[name].splitlines()) == 2 + len({192, 256}) + (name == "errors")


def test_a_model_has_the_errors_on_what_was_held_out(rows: list[Row]) -> None:
    tried = model.compared(rows, model.by_workload)
    (made,) = model.models(rows, tried)
    assert made.figures is not None and made.figures.workloads == 2
    mean = math.fsum(each.learned.error**2 for each in tried) / 2
    assert made.figures.sd == pytest.approx(math.sqrt(mean))


def test_the_page_has_what_was_written(tmp_path: Path, rows: list[Row]) -> None:
    page = model.PAGE.read_text(encoding="utf-8")
    for name in PARTS:
        assert f"<!-- {name} -->\n" in page and f"<!-- end of {name} -->" in page
        page = markdown.filled(page, name, f"of {name}\n")
        assert f"<!-- {name} -->\n\nof {name}\n\n<!-- end of {name} -->" in page


def test_the_page_is_of_all_landscapes() -> None:
    page = model.PAGE.read_text(encoding="utf-8")
    part = page[page.index("<!-- rows -->") : page.index("<!-- end of rows -->")]
    held = sum(int(line.split("|")[3]) for line in part.strip().splitlines()[4:])
    assert held == len(training_rows.files([model.LANDSCAPES]))
