"""tunefa/compile/launch/triton_stored.py: a stored binary launches as Triton's own object does."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_cuda import FakeCuda
from tests.support.hopper_on_cpu import hopper
from tests.support.launch_specs import spec_of
from tunefa.compile import languages
from tunefa.compile.contract import CompileError, Launch
from tunefa.compile.launch import triton_stored
from tunefa.compile.launch.prepared import PreparedLaunch
from tunefa.measure import ops
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

SM90 = Target.named("sm90")


def pair(
    monkeypatch: pytest.MonkeyPatch, name: str, workload: str, **changes: Any
) -> tuple[Launch, Launch, FakeCuda]:
    """The launches of a config as it was compiled, and as it was stored."""
    _, fake = hopper(monkeypatch, name, has_code=True)
    kernel, w = kernels.load(name), Workload.parse(workload)
    case = Case(kernel, w, SM90)
    config = {**case.default(), **changes}
    language = languages.load(kernel.language)
    compiled = language.compile(case, config)
    steps = {}
    for step in ("binary", "preprocess", "postprocess"):
        binary = getattr(compiled, step)
        if binary is not None:
            image, data = language.stored(binary)
            steps[step] = language.restored(image, json.loads(json.dumps(data)))
    spec = spec_of(kernel, w, config, 0.25)
    tensors = [*ops.of(w).tensors(w, "cpu")]
    own = language.prepare(spec, compiled, tensors)
    return own, language.prepare(spec, replace(compiled, **steps), tensors), fake


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("attention_fwd_triton", "b2_h8_kv2_q100_k70_d64_fp16"),
        ("attention_bwd_triton", "bwd_b2_h8_kv2_q100_k70_d64_bf16"),
        ("attention_decode_triton", "decode_b2_h8_kv2_k100_d64_bf16"),
        ("attention_fwd_gluon_sm90", "b1_h4_kv2_q256_d128_bf16"),
    ],
)
def test_launches_are_equal(monkeypatch: pytest.MonkeyPatch, name: str, workload: str) -> None:
    own, stored, _ = pair(monkeypatch, name, workload)
    own_key, stored_key = (getattr(each, "key", None) for each in (own, stored))
    assert own_key is not None and own_key == stored_key


def test_it_is_loaded_once_with_its_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    _, stored, fake = pair(monkeypatch, "attention_fwd_triton", "b1_h2_q300_d128_bf16",
                           BLOCK_M=128, BLOCK_N=64, num_stages=3)  # fmt: skip
    assert isinstance(stored, PreparedLaunch)
    binary: Any = stored.entry.binary
    assert isinstance(binary, triton_stored.StoredBinary)
    assert fake.loaded == [("attention_fwd", binary.metadata.shared)]
    assert fake.preferring == ["attention_fwd"] and binary.metadata.shared > 48 * 1024
    binary.load(fake.driver)
    assert len(fake.loaded) == 1


def test_a_driver_that_refuses_it_is_named() -> None:
    fake = FakeCuda([])
    fake.load_status = 209
    metadata = SimpleNamespace(name="attention_fwd", shared=0)
    binary = triton_stored.StoredBinary(b"", metadata, None, {}, "Triton 3.7.1")
    with pytest.raises(CompileError, match=r"does not load what Triton 3\.7\.1 made: update the"):
        binary.load(fake.driver)


def test_what_needs_triton_s_launcher_is_not_stored() -> None:
    metadata = SimpleNamespace(name="a", global_scratch_size=64, profile_scratch_size=0,
                               num_ctas=1, launch_cooperative_grid=False)  # fmt: skip
    with pytest.raises(CompileError, match="a starts by Triton's launcher alone"):
        triton_stored.stored(SimpleNamespace(metadata=metadata), "Triton 3.7.1")
