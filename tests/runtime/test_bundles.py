"""tunefa/runtime/bundles.py: what a process runs from a bundle, and what it refuses.

The processes without compilers are real ones; the driver alone is a stand-in.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tunefa
from tests.support import bundle_on_cpu, sample_bundles
from tests.support.hopper_on_cpu import SEEN, hopper
from tests.support.sample_bundles import compiled
from tunefa.compile.launch import generations
from tunefa.errors import TunefaError
from tunefa.runtime import bundles, process
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.chip import Chip
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.process import Runtime
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import bundle_file
from tunefa.store.bundle_file import BundleFile

CPU = torch.device("cpu")
CAUSAL = Options(True)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of real kernels for an H200."""
    path = tmp_path / "app.tunefa"
    bundle_file.write(path, *compiled())
    return path


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A runtime whose H200 is the CPU, and which can compile nothing without being noticed."""
    made, _ = hopper(monkeypatch, "attention_fwd_triton", has_code=True)
    made.planner.devices[CPU] = (Chip.of_seen(SEEN), Compiler(made.planner.bundles.find))
    monkeypatch.setattr(process, "_RUNTIME", made)
    return made  # type: ignore[return-value]


def tensors(length: int = 512, head_dim: int = 128, dtype: Any = torch.bfloat16) -> Tensors:
    q = torch.zeros(2, length, 8, head_dim, dtype=dtype)
    return Tensors(q, q[:, :, :2].contiguous(), q[:, :, :2].contiguous())


def test_a_process_without_compilers_runs_all_kinds_of_calls(bundle: Path, tmp_path: Path) -> None:
    *calls, imported = bundle_on_cpu.calls(bundle, tmp_path / "home")
    assert imported["found"] == []
    said = {each["what"]: each for each in calls}
    kinds = {"forward": 1, "backward": 2, "decode": 2}
    for what, each in said.items():
        assert each["kernel"] != "pytorch", each
        assert each["why"].startswith(f"from the bundle {bundle}: "), each
        assert each["started"] >= min(kinds[what.partition(" ")[0]], 2), each
    lengths = bundle_on_cpu.LENGTHS
    assert {f"{kind} {length}" for kind in ("forward", "backward") for length in lengths} < {*said}
    assert said["forward 300"]["kernel"] == "attention_fwd_triton"
    assert said["decode 9 512"]["config"] == said["decode 4 1024"]["config"]
    assert "the nearest plan is for fwd_b2_h8_kv2_q512_k512" in said["forward 640"]["why"]


def test_a_frozen_process_runs_the_exact_plans(bundle: Path, tmp_path: Path) -> None:
    *calls, imported = bundle_on_cpu.calls(bundle, tmp_path / "home", "frozen")
    assert imported["found"] == []
    assert [each["what"] for each in calls[:2]] == ["forward 512", "backward 512"]
    assert all(each["kernel"] != "pytorch" for each in calls) and len(calls) == 5


def test_frozen_serves_nothing_less(runtime: Runtime, bundle: Path) -> None:
    tunefa.load(bundle, frozen=True)
    assert str(bundle) in runtime.plan(tensors(), CAUSAL).chosen.why
    said = (
        r"app\.tunefa, which this process is frozen to, does not serve this call \(fwd_b2_.*q513.* "
        r"on NVIDIA H200 \(sm90\)\): it has no plan: add it with 'tunefa bundle -w fwd_b2_"
    )
    with pytest.raises(TunefaError, match=said):
        runtime.plan(tensors(513), CAUSAL)
    with pytest.raises(TunefaError, match="is the only file that it may use: do not load"):
        tunefa.load("other.tunefa")
    tunefa.load(bundle, frozen=True)  # which may be another file of that name now
    assert len(runtime.planner.bundles.files) == 1


def test_the_environment_freezes_to_a_bundle(
    runtime: Runtime, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFA_FROZEN", str(bundle))
    assert str(bundle) in runtime.plan(tensors(), CAUSAL).chosen.why
    with pytest.raises(TunefaError, match="it has no plan"):
        runtime.plan(tensors(100), CAUSAL)


def test_what_no_bundle_serves_is_looked_up_as_without(runtime: Runtime, bundle: Path) -> None:
    tunefa.load(bundle)
    with pytest.warns(UserWarning, match=r"app\.tunefa does not serve fwd_b2_h8_kv2_q512_k512_d64"):
        plan = runtime.plan(tensors(head_dim=64), CAUSAL)
    assert plan.chosen.kernel == "attention_fwd_triton" and "bundle" not in plan.chosen.why
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        runtime.plan(tensors(400, head_dim=64), CAUSAL)


def test_of_two_bundles_the_last_comes_first(
    runtime: Runtime, bundle: Path, tmp_path: Path
) -> None:
    contents, images = compiled()
    second = tmp_path / "second.tunefa"
    kept = [plan for plan in contents.plans if plan.workload.op == "fwd"]
    made = {**contents.provenance, "licence": "MIT"}
    bundle_file.write(second, replace(contents, plans=kept, provenance=made), images)
    tunefa.load(bundle)
    tunefa.load(second)
    assert str(second) in runtime.plan(tensors(), CAUSAL).chosen.why
    tunefa.load(bundle)  # again: it counts once, and now comes first
    assert len(runtime.planner.bundles.files) == 2
    assert str(bundle) in runtime.plan(tensors(), CAUSAL).chosen.why


def test_a_chip_that_is_not_in_it_is_refused(runtime: Runtime, bundle: Path) -> None:
    tunefa.load(bundle)
    a100 = Chip("NVIDIA A100-SXM4-80GB", Target.named("a100"))
    runtime.planner.devices[CPU] = (a100, Compiler(runtime.planner.bundles.find))
    with pytest.raises(TunefaError, match=r"app\.tunefa has binaries for NVIDIA H200 \(sm90\), and "
                       r"this device is NVIDIA A100.*'tunefa bundle --arch sm80'"):  # fmt: skip
        runtime.plan(tensors(), CAUSAL)


def test_another_device_of_the_arch_runs_its_binaries(runtime: Runtime, bundle: Path) -> None:
    tunefa.load(bundle)
    h100 = Chip("NVIDIA H100 80GB HBM3", Target.named("h100"))
    runtime.planner.devices[CPU] = (h100, Compiler(runtime.planner.bundles.find))
    chosen = runtime.plan(tensors(), CAUSAL).chosen
    assert chosen.how == "other-device" and str(bundle) in chosen.why


def test_a_plan_from_before_a_parameter_was_added_is_refused() -> None:
    kernel = kernels.load("attention_fwd_cuda_sm90")
    config = kernel.default(Workload.parse("q4096"), Target.named("h200").arch)
    plan: Any = SimpleNamespace(kernel=kernel.name, config=config)
    made = {kernel.name: {"source_hash": kernel.source_hash}}
    file: Any = SimpleNamespace(path="app.tunefa", kernels=made, plans=[plan])
    assert bundles._kernel(file, kernel.name).name == kernel.name
    plan.config = {name: value for name, value in config.items() if name != "FP16_PV"}
    said = (
        r"app\.tunefa was made with another search space of .*FP16_PV is missing\): make it again"
    )
    with pytest.raises(TunefaError, match=said):
        bundles._kernel(file, kernel.name)


def test_another_source_of_a_kernel_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    path = sample_bundles.write(tmp_path / "old.tunefa")
    said = (
        r"another source of attention_fwd_triton \(0123, and this tunefa has [0-9a-f]+\): make it"
    )
    with pytest.raises(TunefaError, match=r"old\.tunefa was made with " + said):
        tunefa.load(path)
    assert not runtime.planner.bundles
    contents = sample_bundles.contents()
    path = tmp_path / "foreign.tunefa"
    bundle_file.write(path, replace(contents, kernels={"my_kernel": {}}), sample_bundles.IMAGES)
    with pytest.raises(TunefaError, match=r"foreign\.tunefa cannot be used here: unknown kernel"):
        tunefa.load(path)


def test_a_driver_of_an_older_generation_is_refused(
    runtime: Runtime, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "newest_cuda", lambda: (11, 8))
    said = (
        r"for attention_.*, .* compiled for CUDA 1\d, and this machine's driver knows CUDA up to 11"
    )
    with pytest.raises(TunefaError, match=r"app\.tunefa cannot be used here: " + said):
        tunefa.load(bundle)
    assert not runtime.planner.bundles


def test_a_damaged_file_is_refused_by_name(runtime: Runtime, bundle: Path) -> None:
    whole = bytearray(bundle.read_bytes())
    whole[len(whole) // 2] ^= 1
    bundle.write_bytes(whole)
    for frozen in (False, True):
        with pytest.raises(TunefaError, match=r"app\.tunefa is damaged: its checksum is not"):
            tunefa.load(bundle, frozen=frozen)
    bundle.write_bytes(whole[:1000])
    with pytest.raises(TunefaError, match=r"app\.tunefa is not a bundle of tunefa, or was cut"):
        tunefa.load(bundle)


def test_a_binary_that_cannot_be_used_is_named(
    runtime: Runtime, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tunefa.load(bundle)
    file = runtime.planner.bundles.files[0]
    monkeypatch.setattr(file, "binaries", {name: {"steps": {}} for name in file.binaries})
    said = r"for fwd_b2_.* that cannot be used on NVIDIA H200 \(sm90\): its stored"
    with pytest.raises(TunefaError, match=r"app\.tunefa has a binary of attention_\w+ " + said):
        runtime.plan(tensors(), CAUSAL)


def test_few_queries_run_over_a_cache_where_the_bundle_says_so(
    runtime: Runtime, tmp_path: Path
) -> None:
    path = tmp_path / "few.tunefa"
    bundle_file.write(path, *compiled(("b1_h8_kv2_q1_k4096_d128_bf16",)))
    assert any(plan.workload.op == "decode" for plan in BundleFile(path).plans)
    tunefa.load(path)
    q = torch.zeros(1, 1, 8, 128, dtype=torch.bfloat16)
    k = torch.zeros(1, 4096, 2, 128, dtype=torch.bfloat16)
    for keys in (4096, 4000, 4001, 3000):
        given = Tensors(q, k[:, :keys], k[:, :keys])
        chosen = runtime.plan(given, CAUSAL).chosen
        assert "attention_decode" in chosen.kernel and str(path) in chosen.why
        assert "few queries, so the keys are split" in chosen.why
