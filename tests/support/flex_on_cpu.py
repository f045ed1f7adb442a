"""FlexAttention on the CPU: calls as Inductor meets them, and what Inductor would make of them for
an H200, up to the source of the Triton kernel."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._inductor import config, select_algorithm
from torch._inductor.runtime.hints import DeviceProperties
from torch.nn.attention import flex_attention as interface
from torch.nn.attention.flex_attention import create_block_mask

from tests.support.flex_functions import alibi, documents
from tunefa.compile.contract import CompileError
from tunefa.integrations import flex_capture
from tunefa.integrations.flex_calls import OPERATORS, FlexCall
from tunefa.integrations.flex_traced import Layout, Outputs, TracedCall, replaced
from tunefa.spec.target import Target

H200 = Target.seen("NVIDIA H200", (9, 0), 132)
BATCH, HEADS, HEADS_KV, SEQLEN, HEAD_DIM = 2, 4, 2, 256, 64
_HIGHER = sys.modules["torch._higher_order_ops.flex_attention"]
_PROPERTIES = DeviceProperties(
    type="cuda",
    index=0,
    multi_processor_count=132,
    cc=90,
    major=9,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    warp_size=32,
)


def tensors(dtype: torch.dtype = torch.float32, seqlen: int = SEQLEN) -> tuple[Tensor, ...]:
    """q, k and v on the CPU, with grouped heads."""
    return tuple(
        torch.randn(BATCH, heads, seqlen, HEAD_DIM, dtype=dtype)
        for heads in (HEADS, HEADS_KV, HEADS_KV)
    )


def given(seqlen: int = SEQLEN, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """The arguments of a call: q, k, v, score_mod and block_mask, of three documents."""
    mask = documents((seqlen // 4, seqlen // 2, seqlen - seqlen // 4 - seqlen // 2))
    block_mask = create_block_mask(mask, None, None, seqlen, seqlen, device="cpu")
    return *tensors(dtype, seqlen), alibi(HEADS), block_mask


def eager(call: FlexCall) -> Outputs:
    """The results of PyTorch's definition of the operators, in place of its kernels."""
    results = OPERATORS[call.op](*call.arguments)
    return tuple(results[: 3 if call.op == "bwd" else 2])


def calls(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **more: Any) -> list[FlexCall]:
    """The calls of a forward and a backward pass, which PyTorch refuses on the CPU otherwise.

    Tracing takes a second: the calls of `given()` are traced once, and each test has a copy.
    """
    if arguments or more:
        return _traced(monkeypatch, *arguments, **more)
    usual: list[FlexCall] = pickle.loads(_usual())
    return usual


@functools.cache
def _usual() -> bytes:
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as monkeypatch:
        return pickle.dumps(_traced(monkeypatch, *given()))


def _traced(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **more: Any) -> list[FlexCall]:
    with monkeypatch.context() as patched:
        patched.setattr(interface, "_validate_device", lambda *_: None)
        patched.setattr(flex_capture, "computed", eager)
        return flex_capture.captured(arguments, True, enable_gqa=True, **more)


def on_cuda(call: FlexCall) -> TracedCall:
    """The call on tensors of a CUDA device."""

    def moved(layout: Layout) -> Layout:
        return Layout(layout.shape, layout.strides, layout.dtype, torch.device("cuda:0"))

    layouts = replaced(replaced(call.arguments, torch.Tensor, Layout.of), Layout, moved)
    options = {**call.options, "OUTPUT_LOGSUMEXP": True}  # as PyTorch asks for on CUDA
    return TracedCall(
        call.op, pickle.dumps(FlexCall(call.op, layouts).with_options(options).arguments)
    )


@contextmanager
def an_h200() -> Iterator[None]:
    """Inductor and Triton take this machine for one with an H200, up to the compiled kernel."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    fake: Any = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_active_torch_device=lambda: torch.device("cuda:0"),
    )
    seen = SimpleNamespace(
        **{"major": 9, "minor": 0, "multi_processor_count": 132, "warp_size": 32}
    )
    with (
        mock.patch.object(driver, "_active", fake),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        mock.patch.object(torch.cuda, "get_device_properties", lambda *_: seen),
        mock.patch.object(torch.cuda, "current_device", lambda *_: 0),
        mock.patch.object(DeviceProperties, "create", lambda *_: _PROPERTIES),
        mock.patch.object(_HIGHER, "_permute_strides", _like),
    ):
        yield


def _like(out: Tensor, strides: Any) -> Tensor:
    """PyTorch's own function copies, which needs a CUDA build even without memory."""
    return out.new_empty_strided(out.shape, strides)


def lowered(traced: TracedCall, options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that Inductor gives to PyTorch's template for a call on an H200, by name.
    Raises CompileError if it gets no further."""
    found: list[dict[str, Any]] = []
    inner = select_algorithm.TritonTemplate.generate

    def generate(self: Any, *arguments: Any, **named: Any) -> Any:
        made = inner(self, *arguments, **named)
        if made is not None:
            found.append(named)
        return made

    with (
        an_h200(),
        config.patch(force_disable_caches=True),
        mock.patch.object(select_algorithm.TritonTemplate, "generate", generate),
    ):
        try:
            traced.compile(options)
        except CompileError:  # this machine has no CUDA to load the kernel
            if not found:
                raise
    (only,) = found
    return only


class Here:
    """Workers whose tasks run in this process, when they are submitted."""

    count = 1

    def __init__(self, *_: Any, answer: Any = None) -> None:
        """`answer` is returned in place of a task's result; an exception is raised."""
        self.answer, self.stopped = answer, False
        self.tasks: list[tuple[Any, ...]] = []

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def submit(
        self, task: Any, arguments: tuple[Any, ...], limit_s: float, rank: int = 0
    ) -> Future[Any]:
        """Runs a task."""
        self.tasks.append(arguments)
        done: Future[Any] = Future()
        if isinstance(self.answer, Exception):
            done.set_exception(self.answer)
        else:
            done.set_result(task(*arguments) if self.answer is None else self.answer)
        return done

    def stop(self) -> None:
        """Notes the end."""
        self.stopped = True


class Unwatched:
    """A monitor without a device."""

    disturbance = None

    def __enter__(self) -> Unwatched:
        return self

    def __exit__(self, *_: object) -> None: ...

    def read(self) -> None: ...

    def summary(self) -> dict[str, Any]:
        """The summary of a certificate."""
        return {"watched": False}
