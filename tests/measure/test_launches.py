"""tunefa/measure/launches.py: which trials the device cannot tell apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_device import Device
from tests.support.fixed_store import Fixed
from tests.support.predicted_case import CASE, CONFIG
from tests.support.sample_records import measured
from tunefa.measure import check, launches
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources, Trial
from tunefa.spec.workload import Workload

CUDA, TWO_PASS = "attention_bwd_cuda_sm90", "attention_bwd_two_pass_gluon_sm90"


def trial(code: str | None) -> Trial:
    return Trial(CONFIG, "ok", resources=Resources(code=code))


def test_a_program_is_its_code_and_its_launch() -> None:
    first: Any = SimpleNamespace(key=((1, 2, 3), "table"))
    second: Any = SimpleNamespace(key=((1, 2, 4), "table"))
    without: Any = SimpleNamespace()
    found = launches.what_runs(trial("ab"), first)
    assert found is not None and found == launches.what_runs(trial("ab"), first)
    assert found not in (
        launches.what_runs(trial("cd"), first),
        launches.what_runs(trial("ab"), second),
    )
    assert (
        launches.what_runs(trial(None), first) is launches.what_runs(trial("ab"), without) is None
    )
    assert launches.what_runs(Trial(CONFIG, "ok"), first) is None


def test_a_launch_starts_on_its_tensors(device: Device) -> None:
    tensors = check.tensors(CASE.workload, "cuda")
    launch = launches.launch(CASE, CONFIG, tensors)
    launch()
    assert device.launched == [CONFIG] and device.prepared == [32**-0.5]


def test_the_best_stored_config_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(launches, "launch", lambda *given: launched.append(given))
    target, workload = Target.named("h200"), Workload.parse("matmul_m4096")
    kernel = kernels.load("matmul_triton")
    default = kernel.default(workload, target.arch)
    tuned = {**default, "GROUP_M": 4}
    record = measured("matmul_m4096", kernel=kernel.name, config=tuned, median_us=500.0)
    choice, _ = launches.best(Fixed([record]), workload, target, ("a", "b", "c"))
    assert (choice.how, launched[0][1:]) == ("exact", (tuned, ("a", "b", "c")))
    choice, _ = launches.best(Fixed([]), workload, target, ("a", "b", "c"))
    assert (choice.how, launched[1][1]) == ("default", default)
    case: Case = launched[1][0]
    assert (case.kernel.name, case.workload, case.target) == (kernel.name, workload, target)


@pytest.mark.parametrize(
    ("name", "text", "ragged", "checked"),
    [
        # A diagonal that crosses whole blocks has a binary of its own: the offset is 256.
        (TWO_PASS, "bwd_b4_h16_q4096_d128", (193, 269), (193, 449)),
        (TWO_PASS, "bwd_b4_h16_q4096_d128_full", (193, 269), (193, 512)),
        (CUDA, "bwd_b4_h16_q4096_d128", (97, 141), (97, 256)),
        (CUDA, "bwd_b4_h16_q4096_k4000_d128", (97, 141), (97, 141)),
    ],
)
def test_gradients_are_checked_with_the_binary_that_is_timed(
    name: str, text: str, ragged: tuple[int, int], checked: tuple[int, int]
) -> None:
    """One compilation serves both, and the check says something of what runs."""
    case = Case(kernels.load(name), Workload.parse(text), Target.named("h200"))
    config = {**case.default(), "BLOCK_M": 64} if name == CUDA else case.default()
    plain, shape = launches.ragged_shape(case, config), launches.shape_to_check(case, config)
    assert (plain.seqlen_q, plain.seqlen_k) == ragged
    assert (shape.seqlen_q, shape.seqlen_k) == checked
    assert launches.has_its_binary(case, config, shape)
    assert launches.has_its_binary(case, config, plain) is (ragged == checked)


def test_any_feasible_config_is_checked_with_its_binary() -> None:
    for name in (CUDA, TWO_PASS, "attention_bwd_triton"):
        for text in ("bwd_b4_h16_q4096_d64", "bwd_b4_h16_q4096_d64_full"):
            case = Case(kernels.load(name), Workload.parse(text), Target.named("h200"))
            for config in case.feasible().configs[::97]:
                shape = launches.shape_to_check(case, config)
                assert launches.has_its_binary(case, config, shape), (name, text, config)


def test_the_forward_pass_is_checked_on_the_ragged_shape() -> None:
    workload = Workload.parse("b4_h16_q4096_d128")
    case = Case(kernels.load("attention_fwd_gluon_sm90"), workload, Target.named("h200"))
    config = case.default()
    assert launches.shape_to_check(case, config) == launches.ragged_shape(case, config)
