"""FlexAttention's kernels: their spaces, and what the installed PyTorch reads of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import FlexKernelOptions

from tests.support.flex_on_cpu import H200, an_h200, calls, given, on_cuda
from tunefa.costmodel.estimate import estimates
from tunefa.integrations import flex_kernels
from tunefa.integrations.flex_calls import FlexCall, workload_of
from tunefa.spec.target import Case, Target


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> list[FlexCall]:
    return calls(monkeypatch)


def case(call: FlexCall, target: Target = H200) -> Case:
    workload = workload_of(call)
    assert workload is not None
    return Case(flex_kernels.kernel_of(call), replace(workload, dtype="bf16"), target)


def test_the_name_has_the_hash_of_the_functions(both: list[FlexCall]) -> None:
    forward, backward = map(flex_kernels.kernel_of, both)
    assert forward.name.startswith("flex_attention_fwd.") and forward.op == "fwd"
    assert backward.name.startswith("flex_attention_bwd.") and backward.op == "bwd"
    assert forward.name.partition(".")[2] == backward.name.partition(".")[2]
    assert forward.source_hash != backward.source_hash
    assert all(path.is_file() for path in (*forward.sources, *backward.sources))


def test_every_option_is_one_that_the_installed_pytorch_reads(both: list[FlexCall]) -> None:
    for call in both:
        names = [each.name for each in flex_kernels.space(call.op).parameters]
        options = [name for name in names if not name.startswith("SPARSE_")]
        assert set(options) <= set(FlexKernelOptions.__annotations__)
        assert all(flex_kernels.is_read(name, call.op) for name in names)
    assert not flex_kernels.is_read("BLOCK_M", "bwd") and not flex_kernels.is_read("nothing", "fwd")
    assert not flex_kernels.is_read("BLOCK_M1", "fwd")


def test_an_option_that_is_not_read_has_one_value(
    both: list[FlexCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = flex_kernels.is_read
    monkeypatch.setattr(
        flex_kernels, "is_read", lambda name, op: name != "USE_TMA" and inner(name, op)
    )
    for call in both:
        values = {p.name: p.values for p in flex_kernels.kernel_of(call).space.parameters}
        assert values["USE_TMA"] == (0,) and len(values["num_stages"]) > 1


def test_unsafe_options_are_not_searched(both: list[FlexCall]) -> None:
    """They claim what only the user can know of a mask."""
    unsafe = {"ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS"}
    for call in both:
        assert not unsafe & {each.name for each in flex_kernels.space(call.op).parameters}


def test_prescale_is_for_scores_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, score_mod, block_mask = given()
    for function, asked, right in [
        (score_mod, True, (0,)),
        (None, False, (0,)),
        (None, True, (0, 1)),
    ]:
        for call in calls(monkeypatch, q, k, v, function, block_mask):
            space = flex_kernels.kernel_of(call, asked).space
            assert {p.name: p.values for p in space.parameters}["PRESCALE_QK"] == right


def test_configs_fit_the_block_mask(both: list[FlexCall]) -> None:
    for call in both:
        for size in (128, 64):
            small = (*call.block_mask[:-3], size, size, call.block_mask[-1])
            place = call.options_place - 2
            arguments = (*call.arguments[:place], small, *call.arguments[place + 1 :])
            there = case(FlexCall(call.op, arguments))
            found = there.feasible()
            assert len(found.configs) > 20
            for config in found.configs:
                assert config["SPARSE_Q_BLOCK_SIZE"] == size
                blocks = [value for name, value in config.items() if name.startswith("BLOCK_")]
                assert all(size % block == 0 for block in blocks)
            for name in ("query rows", "keys"):
                (rule,) = (x for x in found.refused if f"the {name} of a block of the mask" in x)
                assert found.refused[rule] or size == 128


def test_the_backward_kernel_s_assertions_are_rules(both: list[FlexCall]) -> None:
    source = "\n".join(path.read_text() for path in flex_kernels.templates("bwd"))
    assert "BLOCK_N1 % BLOCK_M1 == 0" in source and "BLOCK_M2 % BLOCK_N2 == 0" in source
    for config in case(both[1]).feasible().configs:
        assert config["BLOCK_N1"] % config["BLOCK_M1"] == 0
        assert config["BLOCK_M2"] % config["BLOCK_N2"] == 0


def test_pytorch_s_own_options_are_in_the_space(both: list[FlexCall]) -> None:
    for call in both:
        there = case(call)
        halved = FlexCall(call.op, (*(x.bfloat16() for x in call.qkv), *call.arguments[3:]))
        with an_h200():
            own = flex_kernels.default(halved, there.kernel)
        assert own is not None and there.refusal(own) is None
        assert [p.name for p in there.kernel.space.parameters] == list(own)


def test_the_latency_model_knows_the_space(both: list[FlexCall]) -> None:
    for call in both:
        there = case(call)
        configs = there.feasible().configs
        times = [each.time_us for each in estimates(there, configs)]
        assert all(us > 0 for us in times) and max(times) > 1.5 * min(times)


def test_chips_without_tma_have_no_tma(both: list[FlexCall]) -> None:
    a100 = Target.named("sm80")
    for call in both:
        assert all(config["USE_TMA"] == 0 for config in case(call, a100).feasible().configs)


def test_options_are_pytorch_s(both: list[FlexCall]) -> None:
    config: dict[str, Any] = dict(case(both[0]).feasible().configs[0])
    options = flex_kernels.options(config)
    assert options["USE_TMA"] is False and options["PRESCALE_QK"] is False
    assert set(config) - set(options) == {"SPARSE_Q_BLOCK_SIZE", "SPARSE_KV_BLOCK_SIZE"}
    assert set(options) <= set(FlexKernelOptions.__annotations__)
    assert on_cuda(both[0]).op == "fwd" and torch.is_tensor(both[0].qkv[0])
