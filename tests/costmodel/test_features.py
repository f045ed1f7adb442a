"""tunefa/costmodel/features.py: what a learned model sees of configs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tunefa.costmodel import features as made
from tunefa.costmodel import gpu
from tunefa.costmodel.features import features
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources
from tunefa.spec.workload import Workload

CUDA = Case.from_names("attention_fwd_cuda_sm90", "q4096_d128", "h200")
TRITON = Case.from_names("attention_fwd_triton", "q4096_d128", "h200")


def column(name: str, case: Case, *configs: Config) -> list[float]:
    found = features(case, configs)
    return [float(value) for value in found.values[:, found.names.index(name)]]


@pytest.mark.parametrize("case", [CUDA, TRITON], ids=lambda case: case.kernel.name)
def test_many_configs_at_once_have_the_features_of_each(case: Case) -> None:
    default, sizes = case.default(), ("BLOCK_N", "num_stages", "L2_SECTION_MB", "USE_TMA")
    configs = [default] + [
        {**default, each.name: value}
        for each in case.kernel.space.parameters
        for value in each.values
        if each.name in sizes
    ]
    together = features(case, configs)
    assert together.values.shape == (len(configs), len(together.names))
    for place, config in enumerate(configs):
        alone = features(case, [config])
        assert alone.names == together.names
        assert (alone.values[0] == together.values[place]).all()
        assert alone.analytic_us[0] == together.analytic_us[place]


def test_the_cost_model_is_asked_once_for_what_it_sees_no_difference_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Config] = []
    ask = made.of_config

    def counted(case: Case, config: Config, resources: Resources | None) -> object:
        asked.append(config)
        return ask(case, config, resources)

    monkeypatch.setattr(made, "of_config", counted)
    default = CUDA.default()
    others = [{**default, "CLUSTER_SIZE": 1}, {**default, "BLOCK_N": 64}]
    found = features(CUDA, [default, *others])
    assert default["CLUSTER_SIZE"] == 2 and asked == [default, others[1]]
    sizes = column("CLUSTER_SIZE", CUDA, default, *others)
    assert sizes == [2.0, 1.0, 2.0] and found.analytic_us[0] == found.analytic_us[1]


def test_the_compiler_s_resources_count_before_expected_ones() -> None:
    default = TRITON.default()
    spilled = Resources(98304, 255, 400)
    found = features(TRITON, [default, default], [None, spilled])
    assert found.analytic_us[1] > found.analytic_us[0]
    names = found.names.index("registers"), found.names.index("log spills")
    assert found.values[1, names].tolist() == pytest.approx([255.0, math.log1p(400)])


def test_a_config_that_cannot_run_has_an_infinite_time() -> None:
    default = TRITON.default()
    too_large = {**default, "BLOCK_M": 256, "BLOCK_N": 256, "num_stages": 5}
    found = features(TRITON, [too_large, default])
    assert np.isinf(found.analytic_us).tolist() == [True, False]
    assert np.isfinite(found.values).all()


def test_the_chip_counts_through_ratios() -> None:
    """Twice the bandwidth and nothing else is one ratio lower by log 2."""
    default = CUDA.default()
    device = replace(CUDA.device, hbm_bytes_per_s=2 * CUDA.device.hbm_bytes_per_s)
    faster = replace(CUDA, target=replace(CUDA.target, device=device))
    before, after = features(CUDA, [default]), features(faster, [default])
    place = before.names.index("HBM to compute")
    change = after.values[0] - before.values[0]
    assert change[place] == pytest.approx(-math.log(2.0), abs=1e-5)
    assert not np.delete(change, place).any()


def test_packed_sequences_are_seen_as_the_dense_ones_they_resemble() -> None:
    case = Case.from_names("attention_fwd_gluon_sm90", "b8_q4096_d128_varlen", "h200")
    dense = replace(case, workload=Workload.parse("b6_q2731_d128"))
    assert case.workload.dense_equivalent == dense.workload
    config = case.default()
    tiling = case.tiling(config)
    cut = gpu.cut_of(dense.workload, tiling)
    (steps,) = column("log steps per tile", case, config)
    assert steps == pytest.approx(math.log(cut.steps_per_tile), rel=1e-6)
