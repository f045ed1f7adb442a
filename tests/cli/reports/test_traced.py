"""The time that tuning the workloads of a program would save."""

from __future__ import annotations

from pathlib import Path

import pytest

import tunefa
from tunefa import assets
from tunefa.cli.reports import traced as reports
from tunefa.cli.workload_options import Selection
from tunefa.spec import looked_up
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import results as store
from tunefa.store.traced import Calls, Traced

H200 = Target.named("NVIDIA H200")
NEAR = Workload.parse("b2_h32_kv8_q2048_d128_bf16_causal")
MEASURED = Workload.parse("b4_h16_kv16_q4096_d128_bf16_causal")


def test_against_what_ran_on_the_same_device() -> None:
    found = reports.saving(NEAR, Calls(2.0, 1000), H200, True)
    assert found.now_us == pytest.approx(2000.0)
    assert found.untuned_us is not None and found.tuned_us is not None
    assert 0 < found.tuned_us <= found.untuned_us < 2000
    assert found.saves_s == pytest.approx((2000 - found.tuned_us) * 1000 / 1e6)


def test_against_tunefa_without_a_search_on_another_device() -> None:
    found = reports.saving(NEAR, Calls(2.0, 1000), H200, False)
    assert found.untuned_us is not None and found.tuned_us is not None
    assert found.saves_s == pytest.approx((found.untuned_us - found.tuned_us) * 1000 / 1e6)


def test_a_weight_without_calls_saves_a_part_of_itself() -> None:
    found = reports.saving(NEAR, Calls(2.0), H200, False)
    assert found.now_us is None and found.untuned_us is not None and found.tuned_us is not None
    assert found.saves_s == pytest.approx(2.0 * (1.0 - found.tuned_us / found.untuned_us))


def test_a_workload_with_a_record_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """results/nvidia-h200.yaml has one."""
    monkeypatch.setattr(store, "shipped_root", lambda: assets.root("results"))
    untuned_us, tuned_us = reports.expected(MEASURED, H200)
    assert untuned_us == tuned_us
    assert reports.saving(MEASURED, Calls(1.0, 10), H200, False).saves_s == 0.0


def test_few_queries_are_expected_to_run_over_a_cache() -> None:
    few = Workload.parse("b1_q1_k8192")
    assert reports.expected(few, H200) == reports.expected(looked_up.over_cache(few), H200)


def test_what_nobody_knows_is_said() -> None:
    odd = Workload.parse("h4_kv4_q64_d128_e4m3_causal")
    a100 = Target.named("sm80")
    found = reports.saving(odd, Calls(0.0, 3), a100, True)
    assert found.now_us is None and found.saves_s is None and "no kernel serves" in found.why
    with pytest.raises(tunefa.TunefaError):
        reports.expected(odd, a100)


def test_the_table_and_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Traced("cpu")
    found.add(MEASURED, 1.0, 10)
    found.add("attention with a mask", 0.5)
    reports.show(found, Selection(arch="h200"), tmp_path / "w.yaml", as_json=False)
    said = capsys.readouterr().out
    assert "measured on cpu" in said and str(MEASURED) in said
    assert "--top 10 --arch h200" in said
    data = reports.to_data(found)
    assert data["other"] == [{"what": "attention with a mask", "seconds": 0.5, "count": 1}]
