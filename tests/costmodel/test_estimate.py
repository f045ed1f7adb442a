"""tunefa/costmodel/estimate.py: the model of a case's chip, given what its space says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.support import sample_learned
from tunefa.costmodel import gpu, learned, npu
from tunefa.costmodel.estimate import (
    by_model,
    compared_with,
    estimate,
    estimates,
    expected_us,
    learned_parameters,
)
from tunefa.costmodel.learned import LearnedModel
from tunefa.costmodel.ranking import MODEL_ERROR, TIME_SD
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

CASE = Case.from_names("attention_fwd_triton", "q4096_d128", "h200")
NPU = Case.from_names("attention_fwd_ascend", "q4096_d128_fp16", "ascend910b3")


Models = dict[tuple[str, str], LearnedModel]


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> Models:
    """The learned models by kernel and arch: none, unless a test adds one."""
    known: Models = {}
    monkeypatch.setattr(learned, "load", lambda *key: known.get(key))
    return known


@pytest.mark.parametrize("changes", [{}, {"num_stages": 4}, {"BLOCK_N": 32}])
def test_a_gpu_s_time_is_the_model_s_with_the_space_s_bounds(changes: dict[str, Any]) -> None:
    config = {**CASE.default(), **changes}
    arch, tiling, bounds = archs.gpu(CASE.arch), CASE.tiling(config), CASE.estimate(config)
    resources = gpu.expected_resources(
        arch, tiling, int(bounds["smem_bytes"]), int(bounds.get("registers", 0))
    )
    right = gpu.predict(CASE.workload, arch, CASE.device, tiling, resources).time_us
    assert expected_us(CASE, config) == right > 0


def test_what_cannot_run_takes_for_ever() -> None:
    config = {**CASE.default(), "BLOCK_M": 256, "BLOCK_N": 256, "num_stages": 5}
    assert math.isinf(expected_us(CASE, config))


def test_an_npu_s_time_is_the_other_model_s() -> None:
    default = NPU.default()
    right = npu.time_us(NPU.workload, NPU.device, NPU.npu_tiling(default))
    assert expected_us(NPU, default) == right > 0


def test_the_product_and_the_workload_count() -> None:
    default = CASE.default()
    pcie = replace(CASE, target=Target.named("h100 pcie"))
    longer = replace(CASE, workload=Workload.parse("q8192_d128"))
    assert expected_us(pcie, default) > expected_us(CASE, default)
    assert expected_us(longer, default) > 3 * expected_us(CASE, default)


def test_what_was_learned_corrects_the_time_and_says_how_sure_it_is(models: Models) -> None:
    case, model = sample_learned.CASE, sample_learned.MODEL
    default = {**case.default(), "BLOCK_M": 64, "num_warps": 4}
    before = estimate(case, default)
    assert before.sd == TIME_SD
    assert before.comparison_sd == pytest.approx(math.log1p(MODEL_ERROR))
    models[sample_learned.KERNEL, sample_learned.ARCH] = model
    after = estimate(case, default)
    assert after.time_us == pytest.approx(sample_learned.SLOWER * before.time_us)
    figures = sample_learned.FIGURES
    assert (after.sd, after.comparison_sd) == (figures.sd, figures.comparison_sd)
    assert estimates(case, [default, default]) == [after, after]


def test_far_from_what_was_learned_the_cost_model_counts(models: Models) -> None:
    case = replace(sample_learned.CASE, workload=Workload.parse("b128_q1_k8192_d64"))
    (config, *_) = (c for c in case.feasible().configs if c["BLOCK_M"] <= 64)
    before = estimate(case, config)
    models[sample_learned.KERNEL, sample_learned.ARCH] = sample_learned.MODEL
    after = estimate(case, config)
    assert 1.0 < after.time_us / before.time_us < 1.1
    figures = sample_learned.FIGURES
    assert 0.9 * figures.analytic_sd < after.sd < figures.analytic_sd
    assert figures.comparison_sd < after.comparison_sd < figures.analytic_comparison_sd


def test_a_model_of_other_features_is_left_out() -> None:
    case, model = sample_learned.CASE, sample_learned.MODEL
    config = case.default()
    (alone,) = by_model(None, case, [config], [None])
    assert by_model(replace(model, names=model.names[1:]), case, [config], [None]) == [alone]
    (uncalibrated,) = by_model(replace(model, figures=None), case, [config], [None])
    assert uncalibrated.sd == alone.sd


def test_a_learned_model_sees_all_parameters_but_later_ones(models: Models) -> None:
    case = Case.from_names("attention_fwd_cuda_sm90", "q4096_d128", "h200")
    assert not learned_parameters(case)
    assert "CLUSTER_SIZE" not in case.kernel.space.seen_by_cost_model
    names = tuple(parameter.name for parameter in case.kernel.space.parameters)
    models[case.kernel.name, "sm90"] = replace(sample_learned.MODEL, names=(*names, "log_cycles"))
    assert learned_parameters(case) == {*names}
    models[case.kernel.name, "sm90"] = replace(sample_learned.MODEL, names=names[1:])
    assert names[0] == "DEPENDENT_LAUNCH" and learned_parameters(case) == {*names[1:]}


def test_who_asks_hears_with_which_devices_predictions_were_compared(models: Models) -> None:
    assert compared_with("sm90") == ()
    models[sample_learned.KERNEL, "sm90"] = sample_learned.MODEL
    (found,) = compared_with("sm90")
    assert found.kernel == sample_learned.KERNEL and found.devices == ("NVIDIA H200",)
    assert found.figures == sample_learned.FIGURES and compared_with("sm80") == ()
