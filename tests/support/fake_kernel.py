"""A kernel and its language for tests without a GPU: a launch computes the reference."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch

from tunefa.compile import languages
from tunefa.compile.contract import Compiled, CompileError, LaunchSpec
from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.runtime import kernel_plan
from tunefa.runtime.chip import Chip
from tunefa.spec import arch_catalog as archs
from tunefa.spec.arch import Arch
from tunefa.spec.default import Default
from tunefa.spec.expr import Expr
from tunefa.spec.target import Case, Target
from tunefa.spec.tiling import Tiling
from tunefa.spec.trial import Config, Resources
from tunefa.spec.workload import Workload

SM90 = archs.load("sm90")
H200 = Chip("NVIDIA H200", Target(SM90, SM90.device("h200")))
DEFAULT = {"BLOCK_M": 16, "USE_TMA": 0}


def is_aligned(tensors: Any) -> bool:
    """Does what the Triton kernel's does."""
    return all(
        tensor.data_ptr() % 16 == 0 and all(step % 16 == 0 for step in tensor.stride()[:3])
        for tensor in tensors[:4]
    )


@dataclass
class FakeKernel:
    """A kernel with what a runtime asks of one. Refuses the values of BLOCK_M it is told to."""

    name: str = "attention_fwd_triton"
    language: str = "fake"
    op: str = "fwd"
    is_library: bool = False
    source_hash: str = "0123abcd"
    """The source hash of `tests.support.sample_records`."""
    default_config: dict[str, Any] = field(default_factory=lambda: dict(DEFAULT))
    refused_block_m: frozenset[int] = frozenset()
    unaligned: Any = field(default_factory=lambda: {"USE_TMA": 0})
    module: Any = field(default_factory=lambda: SimpleNamespace(is_aligned=is_aligned))
    space: Any = field(default_factory=lambda: FakeSpace())

    def priority(self, workload: Workload, arch: Arch) -> int:
        return 0

    def why_not(self, workload: Workload, arch: Arch) -> str | None:
        return None

    def refusal(self, config: Config, workload: Workload, arch: Arch) -> str | None:
        return "BLOCK_M" if config["BLOCK_M"] in self.refused_block_m else None

    def default(self, workload: Workload, arch: Arch) -> dict[str, Any]:
        return dict(self.default_config)

    def first_default(self, workload: Workload, arch: Arch) -> Default:
        return Default(Expr("True", "fake"), dict(self.default_config))


class FakeSpace:
    """One in which the model finds every config equally fast."""

    parameters = ()
    seen_by_cost_model = ()

    def estimate(self, config: Config, workload: Workload, arch: Arch) -> dict[str, float]:
        return {"smem_bytes": 1024, "registers": 32}

    def tiling(self, config: Config, workload: Workload, arch: Arch) -> Tiling:
        return Tiling(
            block_m=64, block_n=64, columns=64, columns_v=64, warps=4, stages=2,
            copied_by_threads=False, max_registers=255, l2_section_heads=1, packed_heads=1,
            diagonal_n=64, warp_specialised=False,
        )  # fmt: skip

    def tiling_and_estimate(
        self, config: Config, workload: Workload, arch: Arch
    ) -> tuple[Tiling, dict[str, float]]:
        return self.tiling(config, workload, arch), self.estimate(config, workload, arch)


@dataclass
class FakeLaunch:
    """Calls `start` on tensors viewed as those it was prepared for."""

    start: Callable[..., None]
    device_bytes: int
    config: Config

    def __call__(self, *tensors: Any) -> None:
        self.start(*tensors)


@dataclass
class FakeLanguage:
    """Remembers what it compiled; configs with a BLOCK_M of `broken` do not compile."""

    compiled: list[tuple[dict[str, Any], bool]] = field(default_factory=list)
    launched: list[dict[str, Any]] = field(default_factory=list)
    prepared: list[float] = field(default_factory=list)
    """The scales."""
    device_bytes: int = 0
    """Bytes of device memory that a launch holds."""
    broken: frozenset[int] = frozenset()
    triton: str = "3.7.1"

    def versions(self) -> dict[str, str]:
        return {"triton": self.triton, "compiler": "ptxas 13.0.1"}

    def binary_key(self, case: Case, config: Config, aligned: bool) -> tuple[object, ...]:
        """No binary depends on lengths, batch or heads."""
        kind = replace(case.workload, batch=1, seqlen_q=1, seqlen_k=1)
        return case.kernel.name, tuple(sorted(config.items())), kind, aligned

    def compile(self, case: Case, config: Config, aligned: bool = True) -> Compiled:
        if config["BLOCK_M"] in self.broken:
            raise CompileError("ptxas says no")
        self.compiled.append((dict(config), aligned))
        return Compiled(len(self.compiled), Resources, 0.0)

    def prepare(self, spec: LaunchSpec, compiled: Compiled, tensors: Any) -> FakeLaunch:
        self.prepared.append(spec.scale)
        views = [(tensor.shape, tensor.stride()) for tensor in tensors]

        def start(*given: Any) -> None:
            seen = [x.as_strided(*view) for x, view in zip(given, views, strict=True)]
            self.launch(spec, compiled, seen)

        return FakeLaunch(start, self.device_bytes, spec.config)

    def launch(self, spec: LaunchSpec, compiled: Compiled, tensors: Any) -> None:
        workload = spec.case.workload
        q, k, v, out, lse, *descales = tensors
        if workload.op == "decode":  # lengths beyond the cache count as its own
            lengths = descales.pop().clamp_max(workload.seqlen_k).tolist()
            assert lengths == [workload.seqlen_k] * workload.batch
        assert all(tensor.stride(3) == 1 for tensor in (q, k, v, out))
        assert q.shape == (
            workload.batch,
            workload.heads,
            workload.seqlen_q,
            workload.head_dim,
        )
        assert (spec.softcap is not None) == workload.softcap
        mask = (workload.window_left, workload.window_right)
        inputs = AttentionInputs(
            q, k, v, workload.causal, spec.scale, *mask, spec.softcap, descales
        )
        right, right_lse = reference.attention(inputs)
        out.copy_(right)
        lse.copy_(right_lse)
        self.launched.append(dict(spec.config))


@contextlib.contextmanager
def on_cpu(monkeypatch: Any, **options: Any) -> Iterator[FakeLanguage]:
    """CPU tensors pass for a device's: plans made inside are launched by the fake language."""
    language = FakeLanguage(**options)
    with monkeypatch.context() as patch:
        patch.setattr(languages, "load", lambda name: language)
        device = torch.ones(1).get_device()
        patch.setattr(torch._C, "_cuda_getDevice", lambda: device, raising=False)
        patch.setattr(kernel_plan, "_unread", lambda device, elements: torch.empty(elements))
        yield language
