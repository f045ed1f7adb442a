"""tunefa beside cuBLAS, from documents with known figures, and modelled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.sample_records import measured as record
from tunefa.costmodel.roofline import roofline
from tunefa.experiments import matmul
from tunefa.experiments.document import MEASURED, MODELLED, Document
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import results as store

H200 = Target.named("h200")
POINT = Workload.parse("matmul_m1024_fp16")


def row(size: int, tuned: float, default: float, cublas: float) -> dict[str, Any]:
    figures = {"tunefa_us": tuned, "default_us": default, "cublas_us": cublas}
    return {"workload": f"matmul_m{size}_n{size}_k{size}_fp16", "choice": "exact: ...", **figures}


def document(rows: list[dict[str, Any]], source: str = MEASURED) -> Document:
    return Document("matmul", source, "sm90", "NVIDIA H200", rows)


def test_speeds_and_ratios_by_hand() -> None:
    rows = [row(2048, 40.0, 50.0, 30.0), row(1024, 10.0, 20.0, 12.0)]
    (table,) = matmul.EXPERIMENT.tables(document(rows))
    # 2 x 1024^3 FLOP in 10 us are 214.7 TFLOP/s.
    assert table.rows[0] == ["1024", "10.0", "20.0", "12.0", "214.7", "179.0", "2.00×", "1.20×"]
    assert table.rows[1][0] == "2048" and table.rows[1][-2:] == ["1.25×", "0.75×"]
    assert "1.07x to 1.17x over cuBLAS" in table.remarks[0]
    assert "Here it is 0.75× to 1.20×." in table.remarks
    assert not any("Without a record" in said for said in table.remarks)


def test_products_with_fewer_tiles_than_sms_are_named() -> None:
    config = {"BLOCK_M": 128, "BLOCK_N": 128}
    small, large = ({**row(size, 10.0, 20.0, 12.0), "config": config} for size in (1024, 2048))
    (table,) = matmul.EXPERIMENT.tables(document([small, large]))
    said = [remark for remark in table.remarks if "SMs" in remark]
    assert said == [
        "1024: 64 tiles of 128 x 128 for 132 SMs; the kernel does not divide k between CTAs."
    ]


def test_a_point_without_a_search_is_named() -> None:
    rows = [{**row(1024, 10.0, 20.0, 12.0), "choice": "default: no result applies"}]
    (table,) = matmul.EXPERIMENT.tables(document(rows))
    assert table.remarks[-1] == (
        "Without a record of their own, so that they ran what the runtime chose: "
        "matmul_m1024_n1024_k1024_fp16."
    )


def test_sizes_that_differ_are_all_named() -> None:
    rows = [{**row(1024, 1.0, 1.0, 1.0), "workload": "matmul_m16_n32_k64_fp16"}]
    (table,) = matmul.EXPERIMENT.tables(document(rows))
    assert table.rows[0][0] == "16, 32, 64"


@pytest.mark.parametrize("chip", ["sm80", "h200"])
def test_modelled_times_are_between_the_roofline_and_the_default(chip: str) -> None:
    target = Target.named(chip)
    (found,) = matmul.modelled_rows(POINT, target)
    assert found["roofline_us"] == roofline(POINT, target).least_us
    assert found["roofline_us"] < found["tunefa_us"] <= found["default_us"]
    (table,) = matmul.EXPERIMENT.tables(document([found], MODELLED))
    assert "roofline\nus" in table.head and "cuBLAS is not modelled" in table.remarks[-1]


def test_a_plot_has_a_line_for_each_contestant() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    matmul.draw(document([row(1024, 10.0, 20.0, 12.0), row(2048, 40.0, 50.0, 30.0)]), figure)
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.get_lines()] == ["tuned", "default", "cuBLAS"]
    assert list(axes.get_lines()[2].get_ydata()) == pytest.approx([178.96, 572.66], rel=1e-3)


def test_only_what_the_store_lacks_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    wrong = [SimpleNamespace(trial=SimpleNamespace(outcome="wrong"))] * 3
    nothing = SimpleNamespace(record=None, finished=wrong)

    def searched(request: Any, known: Any) -> Any:
        asked.append(request)
        return nothing

    monkeypatch.setattr(search, "search", searched)
    said = matmul.tune(POINT, H200, "graph", Budget(trials=5))
    assert said == f"the search for {POINT} found no right config (3 wrong)"
    (request,) = asked
    assert request.measured and request.mode == "graph" and request.workload == POINT
    assert [kernel.name for kernel in request.kernels] == ["matmul_triton"]
    config = request.kernels[0].default(POINT, H200.arch)
    made = record(str(POINT), kernel="matmul_triton", config=config, median_us=10.0)
    store.default_store().add(made)
    assert matmul.tune(POINT, H200, "graph", Budget(trials=5)) is None
    assert len(asked) == 1, "the record of this workload serves"
