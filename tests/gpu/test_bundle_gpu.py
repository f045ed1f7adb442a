"""A bundle on the device: a process without Triton and NVRTC runs a forward pass, gradients and
attention over a cache, of lengths that the bundle was made for and of others."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tunefa
from tests.support import bundled_process
from tests.support.processes import environment
from tests.support.tree import TREE
from tunefa.errors import TunefaError
from tunefa.runtime import bundle_builder
from tunefa.runtime.process import Runtime
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import bundle_file, results

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
LIMITS = {"forward": 2e-2, "backward": 2e-2, "decode": 2e-2}
"""Limits of errors, see `tests/support/bundled_process.py`: outputs are in bf16."""
SHIPPED_ROOT = results.shipped_root
FIRST_CALL_MS = 50.0
"""The time that a fresh process may take for its first call, once there is a CUDA context."""


def here() -> Target:
    """The device of this machine."""
    seen = torch.cuda.get_device_properties(0)
    capability = seen.major, seen.minor
    return Target.seen(seen.name, capability, seen.multi_processor_count)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for this device."""
    path = tmp_path_factory.mktemp("bundle") / "app.tunefa"
    workloads = [Workload.parse(text) for text in bundled_process.WORKLOADS]
    contents, images = bundle_builder.build(workloads, [here()])
    asked = {plan.workload for plan in contents.plans if not plan.beside}
    assert asked == set(workloads), contents.left_out
    bundle_file.write(path, contents, images)
    return path


def calls(bundle: Path, home: Path, *words: str) -> dict[str, dict[str, Any]]:
    """The report of a process with a bundle on its calls, by their names."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.bundled_process", str(bundle), *words],
        cwd=TREE, env=environment(home), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "in PyTorch: " not in done.stderr, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {each["what"]: each for each in found}


def test_a_process_without_compilers_computes_everything(bundle: Path, tmp_path: Path) -> None:
    found = calls(bundle, tmp_path)
    assert found.pop("imported")["found"] == []
    kinds = {what.partition(" ")[0] for what in found}
    assert kinds == set(LIMITS)
    for what, each in found.items():
        assert each["error"] < LIMITS[what.partition(" ")[0]], (what, each)
        assert each["kernel"] != "pytorch" and f"from the bundle {bundle}" in each["why"], each
    assert found["forward 300"]["kernel"] == "attention_fwd_triton"
    lengths = {f"forward {length}" for length in bundled_process.LENGTHS}
    assert lengths <= set(found)


def test_a_frozen_process_computes_what_the_bundle_has(bundle: Path, tmp_path: Path) -> None:
    found = calls(bundle, tmp_path, "frozen")
    assert found.pop("imported")["found"] == []
    assert all(each["kernel"] != "pytorch" for each in found.values())
    assert set(found) == {"forward 512", "backward 512", "decode 4", "decode 3"}


def test_results_are_those_of_the_compiled_kernels(
    bundle: Path, fresh: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The bundle was made before the fixtures of a test hid the shipped results.
    monkeypatch.setattr(results, "shipped_root", SHIPPED_ROOT)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 512, heads, 128, device="cuda", dtype=torch.bfloat16)
               for heads in (8, 2, 2))  # fmt: skip
    compiled = tunefa.flash_attention(q, k, v, causal=True)
    own = tunefa.last_choice()
    tunefa.load(bundle)
    bundled = tunefa.flash_attention(q, k, v, causal=True)
    chosen = tunefa.last_choice()
    assert own is not None and chosen is not None and str(bundle) in chosen.why
    if own.kernel == chosen.kernel:  # and no library
        assert chosen.config == own.config, (own.why, chosen.why)
        assert torch.equal(bundled, compiled)
    torch.testing.assert_close(bundled, compiled, atol=2e-2, rtol=2e-2)


def test_the_first_call_takes_no_longer_than_it_may(bundle: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        f"sys.modules.update(dict.fromkeys({bundled_process.BLOCKED!r}))\n"
        "import torch, tunefa\n"
        f"tunefa.flash_attention, tunefa.load({str(bundle)!r})\n"
        "q = torch.randn(2, 512, 8, 128, device='cuda', dtype=torch.bfloat16)\n"
        "k = torch.randn(2, 512, 2, 128, device='cuda', dtype=torch.bfloat16)\n"
        "torch.cuda.synchronize()\n"
        "start = time.perf_counter()\n"
        "tunefa.flash_attention(q, k, k, causal=True)\n"
        "torch.cuda.synchronize()\n"
        "print(1e3 * (time.perf_counter() - start))\n"
    )
    times = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], cwd=TREE, env=environment(tmp_path),
                              capture_output=True, text=True, timeout=300)  # fmt: skip
        assert done.returncode == 0, done.stderr
        times.append(float(done.stdout))
    assert min(times) <= FIRST_CALL_MS, times


def test_a_bundle_of_another_chip_is_refused(tmp_path: Path, fresh: Runtime) -> None:
    other = "sm80" if here().arch.name != "sm80" else "sm90"
    contents, images = bundle_builder.build(
        [Workload.parse(bundled_process.WORKLOADS[0])], [Target.named(other)]
    )
    path = tmp_path / "other.tunefa"
    bundle_file.write(path, contents, images)
    tunefa.load(path)
    q = torch.randn(2, 512, 8, 128, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(TunefaError, match=rf"has binaries for .*{other}.* and this device is"):
        tunefa.flash_attention(q, q, q, causal=True)


def test_a_binary_that_the_driver_refuses_is_named(
    bundle: Path, fresh: Runtime, tmp_path: Path
) -> None:
    """Its image is replaced by one for which the checksums are right."""
    file = bundle_file.BundleFile(bundle)
    broken = {bundle_file.name_of(b"no cubin"): b"no cubin"}
    (name,) = broken
    binaries = {
        digest: {**data, "steps": {step: {**parts, "image": name}
                                   for step, parts in data["steps"].items()}}
        for digest, data in file.binaries.items()
    }  # fmt: skip
    contents = bundle_file.Contents(
        file.plans, file.records, file.kernels, binaries, file.provenance
    )
    path = tmp_path / "broken.tunefa"
    bundle_file.write(path, contents, broken)
    tunefa.load(path)
    q, k = (torch.randn(2, 512, heads, 128, device="cuda", dtype=torch.bfloat16)
            for heads in (8, 2))  # fmt: skip
    with pytest.raises(
        TunefaError, match=r"broken\.tunefa has a binary of .* that cannot be used on"
    ):
        tunefa.flash_attention(q, k, k, causal=True)


def test_new_lengths_take_little_time(bundle: Path, fresh: Runtime) -> None:
    tunefa.load(bundle)
    q, k = (torch.randn(2, 900, heads, 128, device="cuda", dtype=torch.bfloat16)
            for heads in (8, 2))  # fmt: skip
    times = []
    for rows in range(512, 712):
        start = time.perf_counter()
        tunefa.flash_attention(q[:, :rows], k[:, :rows], k[:, :rows], causal=True)
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    assert sorted(times)[len(times) // 2] < 2e-3, sorted(times)[-20:]


def test_a_graph_may_capture_the_first_call(bundle: Path, fresh: Runtime) -> None:
    """The binary is loaded while the graph is captured."""
    tunefa.load(bundle)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 512, heads, 128, device="cuda", dtype=torch.bfloat16)
               for heads in (8, 2, 2))  # fmt: skip
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tunefa.flash_attention(q, k, v, causal=True)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, tunefa.flash_attention(q, k, v, causal=True)) and out.any()
    chosen = tunefa.last_choice()
    assert chosen is not None and str(bundle) in chosen.why
