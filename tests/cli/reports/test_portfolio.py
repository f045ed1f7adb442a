"""tunefa/cli/reports/portfolio.py: the words for the bound, and the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sample_portfolios import journals
from tunefa.cli import export_portfolio
from tunefa.cli.export_portfolio import Found
from tunefa.cli.reports import portfolio as reports
from tunefa.cli.reports import text
from tunefa.cli.workload_options import Selection


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Found:
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    return export_portfolio.found(Selection(), 0.02, journals(), ())


def shown(found: Found) -> str:
    out = text.console()
    with out.capture() as captured:
        reports.show(found, out)
    return captured.get()


def test_each_workload_has_its_config_and_its_regret(found: Found) -> None:
    said = [line.split() for line in shown(found).splitlines()]
    assert ["fwd_b1_h8_kv2_q1024_k1024_d64_bf16_causal", "1", "101.5", "100.0", "1.5%"] in said
    assert ["fwd_b1_h8_kv2_q4096_k4096_d64_bf16_causal", "2", "400.0", "400.0", "0%"] in said
    assert ["2", "1.5%", "0.5%"] in said  # the curve


def test_what_was_not_measured_is_said(found: Found) -> None:
    said = " ".join(shown(found).split())
    assert "3 pairs of a workload and a config" in said
    assert "If all of them were good, the bound would be 1." in said


def test_a_bound_that_was_not_reached_is_no_proof(found: Found) -> None:
    assert "Fewer configs cannot do it: the lower bound is 2." in shown(found)
    unsure = Found(found.choices, replace(found.portfolio, bound=1))
    assert "The lower bound is 1: the solver's time was over" in shown(unsure)
    assert reports.to_data(unsure)["exact"] is False
