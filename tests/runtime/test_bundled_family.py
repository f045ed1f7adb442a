"""tunefa/runtime/bundled_family.py: new lengths get the plans that are made anew for them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.hopper_on_cpu import SEEN, hopper
from tests.support.sample_bundles import compiled
from tunefa.compile.languages import cuda
from tunefa.compile.launch import host_side
from tunefa.errors import TunefaError
from tunefa.runtime.bundled_family import BundledFamily, bundled_family
from tunefa.runtime.call import Call, Options, Tensors
from tunefa.runtime.chip import Chip
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.plan import Forward
from tunefa.runtime.process import Runtime
from tunefa.runtime.resized import ResizedPlan
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import bundle_file

CHIP = Chip.of_seen(SEEN)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runtime:
    """A runtime with a bundle, whose H200 is the CPU."""
    bundle_file.write(tmp_path / "app.tunefa", *compiled())
    made, _ = hopper(monkeypatch)
    made.load(tmp_path / "app.tunefa")
    made.planner.devices[torch.device("cpu")] = CHIP, Compiler(made.planner.bundles.find)
    return made


def tensors(batch: int, rows: int, keys: int) -> Tensors:
    q = torch.zeros(batch, rows, 8, 128, dtype=torch.bfloat16)
    k = torch.zeros(batch, keys, 2, 128, dtype=torch.bfloat16)
    return Tensors(q, k, k)


def test_lengths_get_the_plan_that_is_made_anew(runtime: Runtime) -> None:
    chance, quick = random.Random(0), 0
    for _ in range(120):
        rows = chance.choice([chance.randint(65, 900), 512, 256])
        given = tensors(chance.randint(1, 3), rows, rows + chance.choice([0, 0, 64, 100]))
        plan: Any = runtime.plan(given, Options(True))
        anew: Any = runtime.planner.plan(Forward(Call.of(given, Options(True), None)))
        assert (plan.chosen.kernel, plan.chosen.config) == (anew.chosen.kernel, anew.chosen.config)
        assert plan.chosen.workload == anew.chosen.workload
        if isinstance(plan, ResizedPlan):
            quick += 1
            launches: Any = plan.own.launches.launch, anew.launches.launch
            assert launches[0].key == launches[1].key
    assert quick > 100


def test_a_binary_is_loaded_apart_from_the_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A family prepares launches in the thread of the call, perhaps under a graph's capture, where
    nothing may be loaded. Lengths that blocks do not divide need another binary here."""
    bundle_file.write(tmp_path / "full.tunefa", *compiled(("b2_h8_kv2_q4096_d128_bf16_full",)))
    runtime, _ = hopper(monkeypatch)
    runtime.load(tmp_path / "full.tunefa")
    find = runtime.planner.bundles.find
    runtime.planner.devices[torch.device("cpu")] = CHIP, Compiler(find)
    loaded: set[Any] = set()
    new: list[bool] = []
    """For each binary that is loaded first, whether that happens apart."""
    is_apart = [False]

    def load(driver: Any, device: int, binary: Any) -> int:
        if binary not in loaded:
            loaded.add(binary)
            new.append(is_apart[0])
        return 0xF00

    def own_thread(device: int, work: Any) -> Any:
        is_apart[0] = True
        result = work()
        is_apart[0] = False
        return result

    monkeypatch.setattr(cuda, "_loaded", load)
    monkeypatch.setattr(host_side, "apart", own_thread)
    for rows in (2048, 2560, 3072, 2100, 2112, 2101):
        assert "cuda" in runtime.plan(tensors(2, rows, rows), Options(False)).chosen.kernel
    assert new == [True, True]


def test_a_family_has_the_plans_of_its_bundles(runtime: Runtime) -> None:
    bundles = runtime.planner.bundles
    job = Forward(Call.of(tensors(1, 700, 700), Options(True), None))
    family = bundled_family(job, CHIP, bundles)
    assert isinstance(family, BundledFamily)
    own = next(plan for plan in bundles.files[0].plans if plan.workload.op == "fwd")
    exact = family.choose(own.workload)
    assert (exact.config, exact.how, exact.is_final) == (own.config, own.how, True)
    near = family.choose(job.workload())
    assert near.kernel == own.kernel and near.how == "nearest" and near.octaves > 0
    assert f"the nearest plan is for {own.workload}" in near.why
    with pytest.raises(TunefaError, match="no bundle serves fwd_b1"):
        family.choose(Workload.parse("b1_h8_kv2_q700_d64_bf16"))


def test_other_calls_have_no_such_family(runtime: Runtime) -> None:
    bundles = runtime.planner.bundles
    full = Forward(Call.of(tensors(1, 700, 700), Options(False), None))
    assert bundled_family(full, CHIP, bundles) is None
    a100 = Chip("NVIDIA A100-SXM4-80GB", Target.named("a100"))
    with pytest.raises(TunefaError, match="has binaries for NVIDIA H200"):
        bundled_family(full, a100, bundles)
    bundles.files.clear()
    causal = Forward(Call.of(tensors(1, 700, 700), Options(True), None))
    assert bundled_family(causal, CHIP, bundles) is None
