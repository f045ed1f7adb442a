"""tunefa/costmodel/latency.py: each op has its own latency model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tunefa.costmodel import backward, gpu, latency, matmul
from tunefa.costmodel.estimate import compared_with, estimate, estimates
from tunefa.spec.arch_catalog import gpu as gpu_arch
from tunefa.spec.matmul import own
from tunefa.spec.target import Case
from tunefa.spec.trial import Resources

ATTENTION = Case.from_names("attention_fwd_triton", "q4096_d128", "sm90")
GRADIENTS = Case.from_names("attention_bwd_triton", "bwd_q4096_d128", "sm90")
PRODUCT = Case.from_names("matmul_triton", "matmul_m4096", "sm90")
NEEDED = Resources(98304, 168, 0, 0)


def test_each_op_has_its_own_model() -> None:
    for case in (ATTENTION, GRADIENTS, PRODUCT):
        config, arch = case.default(), gpu_arch(case.arch)
        found = latency.of(case).predict(case, config, NEEDED)
        if case is ATTENTION:
            tiling = case.tiling(config)
            right = gpu.predict(case.workload, arch, case.device, tiling, NEEDED)
        elif case is GRADIENTS:
            tiled = case.backward_tiling(config)
            right = backward.predict(case.workload, arch, case.device, tiled, NEEDED)
        else:
            product = case.matmul_tiling(config)
            right = matmul.predict(own(case.workload), arch, case.device, product, NEEDED)
        assert found == right


@pytest.mark.parametrize("case", [ATTENTION, GRADIENTS, PRODUCT], ids=lambda case: case.kernel.op)
def test_expected_resources_are_not_below_the_bounds(case: Case) -> None:
    model, config = latency.of(case), case.default()
    lower, (expected, registers) = case.estimate(config), model.needs(case, config)
    assert (expected.registers or 0) >= lower["registers"]
    assert expected.smem_bytes == lower["smem_bytes"]
    assert model.threads(case, config) == 32 * config["num_warps"]
    assert registers == lower["registers"]


@pytest.mark.parametrize("case", [GRADIENTS, PRODUCT], ids=lambda case: case.kernel.op)
def test_other_ops_are_estimated_by_their_models_with_the_stated_error(case: Case) -> None:
    config = case.default()
    made = estimate(case, config, NEEDED)
    right = latency.of(case).predict(case, config, NEEDED)
    assert made.time_us == right.time_us and made.sd > 0
    assert compared_with("sm90", case.kernel.op) == () != compared_with("sm90")


@pytest.mark.parametrize(
    "names",
    [
        ("attention_bwd_cuda_sm90", "bwd_q4096_d128"),
        ("attention_bwd_two_pass_gluon_sm90", "bwd_q4096_d128"),
        ("attention_decode_cuda_sm90", "decode_b16_k8192"),
    ],
    ids=lambda names: names[0],
)
def test_the_model_is_asked_once_for_configs_that_it_does_not_tell_apart(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case.from_names(*names, "sm90")
    every = case.feasible().configs
    configs = every[:300]
    needed = [replace(NEEDED, smem_bytes=1024 * (place % 3)) for place in range(len(configs))]
    alone = [estimate(case, config) for config in configs]
    compiled = [estimate(case, *each) for each in zip(configs, needed, strict=True)]
    asked = []
    predict = latency.Model.predict

    def counted(self: latency.Model, *given: Any) -> gpu.Prediction:
        asked.append(given)
        return predict(self, *given)

    monkeypatch.setattr(latency.Model, "predict", counted)
    assert estimates(case, configs) == alone
    seen = {tuple(each[name] for name in case.kernel.space.seen_by_cost_model) for each in configs}
    assert len(asked) == len(seen) < len(configs)
    assert estimates(case, configs, needed) == compiled
    assert len({each.time_us for each in compiled}) > 1
