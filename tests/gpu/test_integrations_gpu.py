"""PyTorch's scaled_dot_product_attention on a CUDA device while tunefa is active."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import tunefa
from tests.support.sdpa_on_cuda import attend, choice, inputs, kernels_of, near, step
from tests.support.tree import TREE
from tunefa.integrations import overrides, sdpa, sdpa_choice

CUDA: Any = torch.cuda  # parts of it have no types
HAS_REGISTRY = hasattr(torch.nn.attention, "register_flash_attention_impl")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(not HAS_REGISTRY, reason="needs PyTorch 2.11 or newer"),
]
BACKENDS = [SDPBackend.FLASH_ATTENTION, None]
"""None: PyTorch's own order of backends, in which cuDNN may be the first."""


@pytest.fixture(autouse=True)
def inactive() -> Iterator[None]:
    tunefa.deactivate()
    yield
    tunefa.deactivate()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_training_step_is_tunefa_s(backend: Any, causal: bool, head_dim: int) -> None:
    given = inputs(4096, 4096, head_dim=head_dim)
    with sdpa_kernel(backend) if backend else contextlib.nullcontext():
        right = step(attend, given, causal=causal)
        tunefa.activate()
        seen = kernels_of(lambda: step(attend, given, causal=causal))
        found = step(attend, given, causal=causal)
    near(found, right)
    assert not [name for name in seen if "flash_fwd" in name or "cudnn" in name], seen
    assert choice().startswith("attention_fwd_") and "fa2" not in choice()


def test_the_default_order_of_backends_reaches_tunefa() -> None:
    """Without any sdpa_kernel, as in an unchanged program."""
    given = inputs(4096, 4096)
    before = kernels_of(lambda: attend(*given))
    tunefa.activate()
    after = kernels_of(lambda: attend(*given))
    assert before.isdisjoint(after), (before, after)
    assert [name for name in after if "attention_fwd" in name], after
    assert not [name for name in after if "flash_fwd" in name or "cudnn" in name], after


def test_keys_before_the_queries_without_a_mask_and_causal_top_left() -> None:
    """PyTorch computes a causal call with more keys than queries elsewhere: it is aligned to the
    top left."""
    given = inputs(2048, 6000)
    for causal in (False, True):
        tunefa.deactivate()
        right = attend(*given, causal=causal)
        tunefa.activate()
        near((attend(*given, causal=causal),), (right,))


def test_masks_and_dropout_go_to_pytorch() -> None:
    given = inputs(1024, 1024)
    mask = torch.ones(1024, 1024, dtype=torch.bool, device="cuda").tril()
    right = attend(*given, causal=False, attn_mask=mask)
    tunefa.activate()
    torch.testing.assert_close(attend(*given, causal=False, attn_mask=mask), right)
    torch.manual_seed(1)
    one = attend(*given, dropout_p=0.2)
    torch.manual_seed(1)
    tunefa.deactivate()
    torch.testing.assert_close(attend(*given, dropout_p=0.2), one)


def test_a_head_dim_that_pytorch_pads() -> None:
    given = inputs(4096, 4096, head_dim=100)
    right = step(attend, given)
    tunefa.activate()
    near(step(attend, given), right)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_graphs_follow(mode: str) -> None:
    given = inputs(4096, 4096)
    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, mode=mode)

    def one() -> tuple[Tensor, ...]:
        return tuple(x.clone() for x in step(compiled, given))

    right = one()
    tunefa.activate()
    if mode == "default":  # a graph that was captured before replays what it captured
        near(one(), right)
        assert choice() == "attention_fwd_cuda_sm90" or choice().startswith("attention_fwd")
        tunefa.deactivate()
        near(one(), right)
    torch._dynamo.reset()
    tunefa.activate()
    for _ in range(4):
        near(one(), right)


def test_a_captured_graph_holds_short_kernels_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # Shorter ones, of 64 rows, have no record nearby: PyTorch computes them in graphs too.
    q, k, v = (x.detach() for x in inputs(256, 256, batch=1))
    right = attend(q, k, v)
    tunefa.activate()
    asked: list[bool] = []
    inner = sdpa_choice.is_taken

    def seen(*given: Any) -> bool:
        asked.append(inner(*given))
        return asked[-1]

    monkeypatch.setattr(sdpa_choice, "is_taken", seen)
    attend(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with CUDA.graph(graph):
        out = attend(q, k, v)
    graph.replay()
    near((out,), (right,))
    assert asked == [False, True]


def test_packed_sequences_of_pytorch_are_tunefa_s() -> None:
    from torch.nn.attention.varlen import varlen_attn

    lengths = torch.tensor([0, 3000, 3100, 8000, 12000], dtype=torch.int32, device="cuda")
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(12000, 16, 128, device="cuda", dtype=torch.bfloat16).requires_grad_()
        for _ in range(3)
    )

    def packed(q: Tensor, k: Tensor, v: Tensor) -> Any:
        named: dict[str, Any] = {"window_size": (-1, 0)}
        try:
            return varlen_attn(q, k, v, lengths, lengths, 4900, 4900, **named)
        except TypeError:  # PyTorch 2.10 and 2.11 before it had windows
            return varlen_attn(q, k, v, lengths, lengths, 4900, 4900, is_causal=True)  # type: ignore[call-arg]

    right = step(packed, (q, k, v))
    tunefa.activate()
    near(step(packed, (q, k, v)), right)
    assert choice().startswith("attention_fwd_") and "fa2" not in choice()


def test_the_overrides_are_all_there() -> None:
    made = sdpa.Overrides("CUDA")
    made.remove()
    for name in sdpa.OPERATORS:
        assert overrides.has_kernel(f"aten::{name}", "CUDA"), name


PROGRAM = """
import torch, torch.nn.functional as F
q = torch.randn(1, 32, 8192, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
k, v = torch.randn(2, 1, 8, 8192, 128, device="cuda", dtype=torch.bfloat16)
F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).sum().backward()
import tunefa
for backward in (False, True):
    found = tunefa.last_choice(backward=backward)
    print(found and found.kernel)
"""
SITE = """
import torch  # as if the entry point were installed
from tunefa.integrations import autoload
autoload.at_import()
"""


@pytest.mark.parametrize("value", ["1", "0"])
def test_the_environment_variable_is_enough(value: str) -> None:
    env = {**os.environ, "TUNEFA_ACTIVATE": value, "PYTHONPATH": str(TREE)}
    command = [sys.executable, "-c", SITE + PROGRAM]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    forward, backward = done.stdout.split()
    assert forward.startswith("attention_fwd") == (value == "1")
    assert backward.startswith("attention_bwd") == (value == "1")


@pytest.mark.parametrize("active", [False, True])
def test_a_trace_times_calls_on_the_device(active: bool, tmp_path: Any) -> None:
    from tunefa.store import traced

    given = inputs(4096, 4096)
    step(attend, given)
    if active:
        tunefa.activate()
        step(attend, given)
    with tunefa.trace(tmp_path / "workloads.yaml"):
        for _ in range(5):
            step(attend, given)
    found = traced.read(tmp_path / "workloads.yaml")
    assert found.device == CUDA.get_device_name()
    calls = {str(each): of.count for each, of in found.workloads.items()}
    name = "b2_h32_kv8_q4096_k4096_d128_bf16_causal"
    assert calls == {f"fwd_{name}": 5, f"bwd_{name}": 5}
    for of in found.workloads.values():
        assert 5 * 100e-6 < of.seconds < 5 * 20e-3
