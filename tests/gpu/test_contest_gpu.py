"""tunefa/measure/contest.py on a device: tunefa beside PyTorch's peers, modes, and failures."""

from __future__ import annotations

import pytest
import torch

from tests.support import crashing_contestants
from tests.support.gpu_kernels import seen_target, served
from tunefa.experiments import ours
from tunefa.experiments.compare import Comparisons
from tunefa.measure import ceilings, contest, peers
from tunefa.measure.contest import Contest, Settings
from tunefa.measure.peer import Call, Tensors
from tunefa.spec.trial import MODES, Mode
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu

WORKLOAD = Workload.parse("b2_h8_kv2_q512_d128_causal")
QUICK = Settings(rounds=3)


def held(workload: Workload, *names: str, settings: Settings = QUICK) -> Contest:
    makers = {"tunefa": ours.maker(), **{name: peers.load(name).make for name in names}}
    return contest.run(workload, makers, settings)


@pytest.mark.parametrize(
    "text",
    [
        "b2_h8_q512_d64_full",
        "b2_h8_kv2_q512_d128_causal",
        "b1_h4_q256_k512_d64_fp16_causal",
        "b1_h4_q512_d64_causal_w100",
        "b1_h4_q512_d64_full_w100",
        "b1_h4_q512_d64_w100_a50",
        "b1_h4_q256_d72_causal",
        "b1_h4_q256_d64_fp32_causal",
        "b1_h4_q256_d64_fp16_causal_softcap",
    ],
)
def test_pytorchs_peers_compute_what_tunefa_does(text: str) -> None:
    workload = Workload.parse(text)
    found = held(workload, "sdpa", "cudnn", "fa2", "efficient", "math", "operators")
    both = {"tunefa", "operators"}
    halves = {"fa2"} if workload.dtype != "fp32" else set()
    needed = both if workload.softcap else both | {"sdpa", "math"} | halves
    assert needed <= found.scores.keys(), found.left_out
    for why in found.left_out.values():
        assert why.startswith(("it has no", "PyTorch says: ")), found.left_out


def test_flex_attention_is_autotuned_checked_and_captured() -> None:
    """One shape only, as Inductor compiles several configs and times them. Without autotuning,
    test_peers_gpu.py judges what it computes for every mask."""
    found = held(Workload.parse("b1_h4_kv2_q256_d64_causal"), "flex", "operators")
    assert found.scores.keys() == {"tunefa", "flex", "operators"}, found.left_out
    assert found.scores["flex"].captured


@pytest.mark.parametrize("mask", ["full", "causal", "causal_w100"])
def test_packed_sequences(mask: str) -> None:
    found = held(Workload.parse(f"b8_h4_q500_d64_{mask}_varlen"), "fa2", "cudnn", "flex")
    assert found.scores.keys() == {"tunefa", "fa2"}, found.left_out


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: Mode) -> None:
    found = held(WORKLOAD, "sdpa", "fa2", settings=Settings(mode, rounds=3))
    assert {score.captured for score in found.scores.values()} == {mode != "eager"}
    assert found.device["watched"] in (True, False)


def test_what_cannot_be_captured_is_timed_as_it_is_called() -> None:
    def waits(workload: Workload, tensors: Tensors) -> Call:
        inner = peers.load("sdpa").make(workload, tensors)

        def call() -> torch.Tensor:
            torch.cuda.synchronize()
            return inner()  # type: ignore[no-any-return]

        return call

    makers = {"waits": waits, "sdpa": peers.load("sdpa").make}
    found = contest.run(WORKLOAD, makers, QUICK)
    assert not found.scores["waits"].captured and found.scores["sdpa"].captured
    torch.randn(2, device="cuda")  # PyTorch's generator works
    assert ceilings.measured("bf16").matmul_tflops > 1


def test_a_graph_that_computes_nothing_is_not_timed() -> None:
    def on_a_stream_of_its_own(workload: Workload, tensors: Tensors) -> Call:
        inner = peers.load("sdpa").make(workload, tensors)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        kept = inner()

        def call() -> torch.Tensor:
            if not torch.cuda.is_current_stream_capturing():  # as a library that is not captured
                with torch.cuda.stream(stream):
                    kept.copy_(inner())
                stream.synchronize()
            return kept  # type: ignore[no-any-return]

        return call

    found = contest.run(WORKLOAD, {"apart": on_a_stream_of_its_own}, QUICK)
    assert not found.scores["apart"].captured


def test_who_runs_out_of_memory_loses_only_its_row() -> None:
    def greedy(workload: Workload, tensors: Tensors) -> Call:
        return lambda: torch.empty(2**42, device="cuda")

    found = contest.run(WORKLOAD, {"greedy": greedy, "sdpa": peers.load("sdpa").make}, QUICK)
    assert found.scores.keys() == {"sdpa"}
    assert "out of memory" in found.left_out["greedy"]


def test_who_ruins_the_context_loses_only_its_row() -> None:
    with Comparisons(QUICK, makers=crashing_contestants.with_them) as comparisons:
        found = comparisons.row(WORKLOAD, ["sdpa", "ruins", "fa2"], lambda step: None)
    assert found["scores"].keys() == {"tunefa", "sdpa", "fa2"}, found["left_out"]
    assert "device-side assert" in found["left_out"]["ruins"]
    assert found["ran"]["kernel"] != "pytorch"


@pytest.mark.parametrize("text", ["b2_h8_kv2_q512_d128_causal", "b8_h8_kv2_q500_d128_varlen"])
def test_a_kernel_by_itself(text: str) -> None:
    workload = Workload.parse(text)
    cases = served(workload)
    if not cases:
        pytest.skip(f"no kernel serves {workload} on {seen_target().arch.name}")
    name = cases[0].kernel.name
    found = contest.run(workload, {name: ours.default_of(name)}, QUICK)
    assert found.scores.keys() == {name}, found.left_out
    assert found.scores[name].captured


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "e4m3"])
def test_no_peer_exceeds_the_ceilings(dtype: str) -> None:
    found = ceilings.measured(dtype)
    assert found.matmul_tflops > 1 and found.copy_gb_per_s > 100
    assert found.copy_gb_per_s < 12_000  # HBM3e of a B300 has 8 TB/s
