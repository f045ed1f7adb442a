"""tunefa/costmodel/anchor.py: what is known to be good for a workload, and what it takes there."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from tests.support.anchors import CUDA, GLUON, H200, LONG, TRITON, anchor, record
from tests.support.sample_records import measured, predicted
from tunefa.costmodel.anchor import as_if_exact
from tunefa.costmodel.decision import KNOWN_SURE, SURE
from tunefa.costmodel.estimate import estimate
from tunefa.costmodel.specialize import specialized
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

H100 = Target.named("h100")


def test_a_level_is_what_was_measured_over_what_the_model_says() -> None:
    own = replace(record(CUDA), resources=None)
    there = Case(kernels.load(CUDA), own.workload, H200)
    found = anchor(own, text="b2_h16_q8192_d128_full")
    factor = 732.0 / estimate(there, own.config).time_us
    assert found.levels[CUDA].factor == pytest.approx(factor)
    here = estimate(found.cases[CUDA], own.config).time_us
    assert found.expected(CUDA, own.config).time_us == pytest.approx(factor * here)
    assert found.known[0].record == own and found.known[0].sure == KNOWN_SURE
    assert found.known[0].source == f"the config measured for {own.workload} on NVIDIA H200"
    nearer, further = anchor(own), anchor(own, text="b1_h16_q16384_d128_full")
    assert nearer.levels[CUDA].sd < found.levels[CUDA].sd < further.levels[CUDA].sd
    sibling = anchor(own, target=H100)
    assert nearer.levels[CUDA].sd < sibling.levels[CUDA].sd
    assert nearer.known[0].time_us == 732.0


@pytest.mark.parametrize("registers", [168, 255, None, 9_999])
def test_a_record_is_compared_with_the_resources_it_was_compiled_to(registers: int | None) -> None:
    """No CTA fits an SM with 9,999 registers per thread, so those are not believed."""
    made = Resources(smem_bytes=98_304, registers=registers, spill_bytes=0)
    own = replace(record(TRITON), resources=made)
    there = Case(kernels.load(TRITON), own.workload, H200)
    used = made if registers in (168, 255) else None
    level = anchor(own, text="b2_h16_q8192_d128_full").levels[TRITON].factor
    assert level == pytest.approx(732.0 / estimate(there, own.config, used).time_us)
    found = anchor(own)
    for resources in (None, made, replace(made, registers=128), Resources(65_536, 96, 64)):
        assert found.expected(TRITON, own.config, resources).time_us == 732.0
    if used is not None:
        other = {**own.config, "L2_SECTION_HEADS": 4}
        ratio = found.expected(TRITON, other, made).time_us / 732.0
        times = [estimate(there, config, made).time_us for config in (other, own.config)]
        assert ratio == pytest.approx(times[0] / times[1])


def test_a_record_of_another_device_is_no_measurement_here() -> None:
    own = replace(record(CUDA), resources=None)
    found = anchor(own, target=H100)
    times = [
        estimate(Case(kernels.load(CUDA), own.workload, at), own.config).time_us
        for at in (H100, H200)
    ]
    assert found.expected(CUDA, own.config).time_us == pytest.approx(732.0 * times[0] / times[1])


def test_a_kernel_without_records_borrows_a_level_but_is_not_sure() -> None:
    found = anchor(record(CUDA))
    assert found.levels[GLUON].factor == found.levels[CUDA].factor
    default = next(each for each in found.known if each.kernel == GLUON)
    made = estimate(found.cases[GLUON], default.config)
    assert default.source == "the default measured on NVIDIA H200"
    assert (default.level_sd, default.sure) == (made.sd, SURE)


def test_what_is_known_is_listed_once_and_the_nearest_record_is_first() -> None:
    near, far = record(CUDA, BLOCK_N=64), record(GLUON, "b64_h16_q128_d128_full", 100.0)
    found = anchor(record(CUDA, "b4_h16_q8192_d128_full", 3000.0), near, far)
    assert found.known[0].record == near
    keys = [each.key for each in found.known]
    assert len(set(keys)) == len(keys)
    assert far not in [each.record for each in found.known], "it is too far away"
    assert found.levels[GLUON].sd < math.inf, "but it says how well its kernel is written"
    assert all(each.record for each in found.known if each.kernel == CUDA), "also the default"


def test_predictions_and_other_archs_say_nothing() -> None:
    config = record(CUDA).config
    assert anchor(predicted(LONG, kernel=CUDA, config=config)).known == anchor().known
    sm80 = anchor(record(CUDA), target=Target.named("a100"))
    assert sm80.known == () and sm80.best_known is None and sm80.recommended is None


def test_without_records_the_first_kernel_s_default_is_the_best_known() -> None:
    found = anchor()
    assert found.best_known is not None and found.best_known.winner == found.known[0]
    assert found.known[0].kernel == CUDA and found.known[0].sure == SURE
    assert {each.kernel for each in found.known} == {
        "attention_fwd_cuda_sm80", CUDA, GLUON, "attention_fwd_triton",
    }  # fmt: skip


def test_a_config_that_was_compared_for_this_workload_stays() -> None:
    slow = record(CUDA, BLOCK_N=64)
    for text, target in ((LONG, H200), (LONG, H100), (LONG.replace("_full", "_fp16_full"), H200)):
        found = anchor(slow, text=text, target=target).best_known
        assert found is not None and found.winner.record == slow
        assert as_if_exact(slow, Workload.parse(text), target)
    pcie = Target.named("h100 pcie")
    assert not as_if_exact(slow, slow.workload, pcie)
    assert not as_if_exact(predicted(LONG), Workload.parse(LONG), H200)


def test_the_recommended_config_is_that_which_runs() -> None:
    found = anchor(record(CUDA, "b4_h16_q4096_d128", 300.0), text="b1_h40_q2500_d128")
    assert found.best_known is not None and found.recommended is not None
    best, run = found.best_known.winner, found.recommended
    changes = specialized(found.cases[best.kernel], best.config)
    assert changes == {"L2_SECTION_MB": 32} and run.config == {**best.config, **changes}
    assert run.source == best.source and found.expected(run.kernel, run.config).source


def test_a_device_without_figures_gives_no_level() -> None:
    own = measured(LONG, kernel=CUDA, config=record(CUDA).config, device="NVIDIA H999")
    found = anchor(own, text="b2_h16_q8192_d128_full")
    assert found.levels[CUDA].sd == math.inf and found.known[0].sure == SURE


def test_where_another_kernel_s_default_was_measured_there_is_a_best_known_too() -> None:
    """The kernel of the highest priority has no measured default for one query row."""
    decode = anchor(text="b1_h32_kv8_q1_k8192_d128_bf16_causal")
    cases = decode.cases.values()
    preferred = min(cases, key=lambda case: case.priority).kernel.name
    assert decode.known and preferred not in {each.kernel for each in decode.known}
    assert decode.best_known is not None and decode.recommended is not None
    assert decode.recommended.time_us > 0


def test_what_is_known_of_any_workload_gives_a_recommendation() -> None:
    chance = random.Random(16)
    for _ in range(25):
        rows, keys = chance.choice([1, 16, 700, 4096]), chance.choice([64, 1000, 16384])
        text = f"b{chance.choice([1, 32])}_h16_kv{chance.choice([2, 16])}_q{rows}_k{keys}"
        mask = chance.choice(["causal", "full"])
        found = anchor(text=f"{text}_d{chance.choice([64, 96, 128, 256])}_{mask}")
        assert (found.recommended is None) == (not found.known), found.workload
        assert found.recommended is None or found.recommended.time_us > 0
