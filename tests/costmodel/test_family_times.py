"""tunefa/costmodel/family_times.py: the times are those of `estimate`."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from tests.support.sample_records import measured
from tunefa.costmodel import family_times
from tunefa.costmodel.anchor import Modelled
from tunefa.costmodel.estimate import estimate
from tunefa.costmodel.family_times import FamilyTimes
from tunefa.spec import kernel as kernels
from tunefa.spec.family_space import FamilySpace
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

H200 = Target.named("h200")


@pytest.mark.parametrize("resources", [None, Resources(smem_bytes=99328, registers=168)])
@pytest.mark.parametrize("text", ["h32_kv8_d128", "h16_d256_full", "h16_kv4_d64_softcap"])
@pytest.mark.parametrize(
    "name", ["attention_fwd_cuda_sm90", "attention_fwd_gluon_sm90", "attention_fwd_cuda_sm80"]
)
def test_times_are_those_of_estimate(name: str, text: str, resources: Resources | None) -> None:
    """Nothing was learned of the kernel for sm80 on sm90."""
    first, chance = Workload.parse(f"{text}_q4096"), random.Random(name + text)
    kernel = kernels.load(name)
    if kernel.why_not(first, H200.arch):
        return
    times = FamilyTimes([kernel])
    own = replace(kernel, space=FamilySpace.of(kernel.space, first, H200.arch))
    config = kernel.default(first, H200.arch)
    for _ in range(25):
        rows, keys = chance.choice([1, 64, 65, chance.randint(2, 9000)]), chance.randint(1, 30000)
        workload = replace(first, batch=chance.randint(1, 64), seqlen_q=rows, seqlen_k=keys)
        quick = times.estimate(Case(own, workload, H200), config, resources)
        slow = estimate(Case(kernel, workload, H200), config, resources)
        assert (quick.sd, quick.comparison_sd) == (slow.sd, slow.comparison_sd)
        assert math.isclose(quick.time_us, slow.time_us, rel_tol=1e-12)


def test_a_record_of_another_family_is_modelled_by_its_own_workload() -> None:
    first = Workload.parse("h32_kv8_d128_q4096")
    kernel = kernels.load("attention_fwd_cuda_sm90")
    own = replace(kernel, space=FamilySpace.of(kernel.space, first, H200.arch))
    config = kernel.default(first, H200.arch)
    record = measured("b4_h16_q4096_d128", kernel=kernel.name, config=config, device="NVIDIA H200")
    times, case = FamilyTimes([kernel]), Case(own, first, H200)
    expected = Modelled().of_record(Case(kernel, first, H200), record)
    assert times.of_record(case, record) == times.of_record(case, record) == expected
    assert expected is not None


def test_few_configs_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family_times, "MAX_CONFIGS", 2)
    first, kernel = Workload.parse("h32_kv8_d128_q4096"), kernels.load("attention_fwd_cuda_sm90")
    times, config = FamilyTimes([kernel]), kernel.default(first, H200.arch)
    for stages in (2, 3, 4):
        case, changed = Case(kernel, first, H200), {**config, "num_stages": stages}
        assert times.estimate(case, changed) == estimate(case, changed)
    assert len(times._configs) == 2
