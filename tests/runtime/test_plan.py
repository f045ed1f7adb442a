from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.fake_kernel import DEFAULT, H200, FakeKernel, FakeLanguage, FakeLaunch, on_cpu
from tests.support.fixed_store import Fixed
from tests.support.planned_calls import (
    POINTER,
    TMA,
    UNSERVED,
    WORKLOAD,
    call,
    plan_of,
    record,
    unaligned,
)
from tunefa.compile import languages
from tunefa.compile.contract import CompileError, LaunchSpec
from tunefa.errors import TunefaError
from tunefa.runtime import plan, planning
from tunefa.runtime.call import Call
from tunefa.runtime.chip import Chip
from tunefa.runtime.choice import Chosen
from tunefa.runtime.kernel_plan import KernelPlan
from tunefa.runtime.plan import PyTorchPlan
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.store.lookup import Choice
from tunefa.store.record import Record


@pytest.mark.parametrize(
    ("records", "how", "config"),
    [
        ([record(TMA)], "exact", TMA),
        ([record(TMA, "b2_h8_kv2_q64_d64_bf16_causal")], "nearest", TMA),
        ([record(TMA, device="NVIDIA H100")], "other-device", TMA),
        ([record(TMA, device=None, objective="predicted", mode=None)], "predicted", TMA),
        ([record(TMA, "b2_h8_kv2_q16_d64_fp32_causal")], "default", DEFAULT),
    ],
)
def test_says_what_lookup_found(
    monkeypatch: pytest.MonkeyPatch, records: list[Record], how: str, config: dict[str, Any]
) -> None:
    with on_cpu(monkeypatch) as language:
        chosen = plan_of(call(), language, *records).chosen
    assert (chosen.kernel, chosen.how, chosen.config) == ("attention_fwd_triton", how, config)
    assert chosen.workload == WORKLOAD and chosen.why.startswith(f"{how}: ")
    assert language.compiled == [(config, True)]


@pytest.mark.parametrize("kind", ["base", "strides", "expanded"])
def test_tensors_that_tma_cannot_read(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    made = unaligned(kind)
    with on_cpu(monkeypatch) as language:
        chosen = plan_of(made, language, record(TMA, str(made.workload()))).chosen
        assert (chosen.config, chosen.how) == (POINTER, "exact")
        assert chosen.why.endswith("USE_TMA is 0, not 1: the tensors are not 16-byte aligned")
        assert language.compiled == [(POINTER, False)]


BLIND = FakeKernel("blind", unaligned="it reads whole 16 bytes")


def test_a_kernel_that_cannot_read_the_tensors_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels: Any = [BLIND, FakeKernel()]
    for made, runs in ((call(), "blind"), (unaligned("base"), "attention_fwd_triton")):
        known = [record(TMA, kernel="blind"), record(TMA, median_us=999.0)]
        with on_cpu(monkeypatch) as language:
            chosen = plan.best_plan(made, H200, Fixed(known), kernels, language.compile).chosen
        assert (chosen.kernel, chosen.how) == (runs, "exact")


def test_pytorch_computes_where_no_kernel_reads_the_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels: Any = [BLIND]
    with on_cpu(monkeypatch) as language:
        chosen = plan.best_plan(
            unaligned("base"), H200, Fixed([]), kernels, language.compile
        ).chosen
    assert chosen.kernel == "pytorch" and chosen.why.endswith("(blind: it reads whole 16 bytes)")


def test_a_record_of_a_kernel_without_its_compiler_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fakes: list[Any] = [FakeKernel("optional"), FakeKernel()]
    best = record(TMA, kernel="optional")
    with on_cpu(monkeypatch) as language:
        for lacking, kernel in (({}, "optional"), ({"optional": "why"}, fakes[1].name)):
            monkeypatch.setattr(languages, "without_compiler", lambda *_, found=lacking: found)
            made = plan.best_plan(call(), H200, Fixed([best]), fakes, language.compile)
            assert made.chosen.kernel == kernel


def test_what_the_device_has_too_little_for_gives_way_to_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with on_cpu(monkeypatch) as language:
        prepare = language.prepare

        def scarce(spec: LaunchSpec, *arguments: Any) -> Any:
            if spec.config["BLOCK_M"] == 128:
                raise CompileError("out of resource: shared memory")
            return prepare(spec, *arguments)

        monkeypatch.setattr(language, "prepare", scarce)
        with pytest.warns(UserWarning, match="is not used: out of resource: shared memory"):
            chosen = plan_of(call(), language, record(TMA)).chosen
    assert (chosen.how, chosen.config) == ("default", DEFAULT)


def options(found: dict[str, Any], kernel: FakeKernel, aligned: bool = True) -> list[Chosen]:
    choice = Choice("attention_fwd_triton", found, "exact", record(found))
    fake: Any = kernel
    case = Case(fake, WORKLOAD, Target.named("h200"))
    return list(planning.configs_to_try(choice, case, aligned))


def test_options_are_what_was_found_then_the_default() -> None:
    first, second = options(TMA, FakeKernel())
    assert (first.config, first.how) == (TMA, "exact")
    assert (second.config, second.how) == (DEFAULT, "default")
    assert second.why.startswith(
        "default: the config that was found cannot run here (exact: measured on"
    )


def test_what_the_space_refuses_with_pointers_gives_way_to_the_default() -> None:
    kernel = FakeKernel(refused_block_m=frozenset({128}), default_config={**TMA, "BLOCK_M": 64})
    (only,) = options(TMA, kernel, aligned=False)
    assert (only.config, only.how) == ({"BLOCK_M": 64, "USE_TMA": 0}, "default")


def test_a_config_that_does_not_compile_gives_way_to_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        on_cpu(monkeypatch, broken=frozenset({128})) as language,
        pytest.warns(UserWarning, match=r"'BLOCK_M': 128.* is not used: ptxas says no"),
    ):
        chosen = plan_of(call(), language, record(TMA)).chosen
    assert (chosen.how, chosen.config) == ("default", DEFAULT)


@pytest.mark.filterwarnings("ignore:.*is not used")
def test_a_kernel_that_does_not_compile_gives_way_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = FakeKernel("newest", default_config={"BLOCK_M": 128, "USE_TMA": 0})
    fakes: list[Any] = [broken, FakeKernel()]
    other = {"BLOCK_M": 64, "USE_TMA": 1}
    known = [record(TMA, kernel="newest"), record(other, median_us=999.0)]
    with on_cpu(monkeypatch, broken=frozenset({128})) as language:
        chosen = plan.best_plan(call(), H200, Fixed(known), fakes, language.compile).chosen
    assert (chosen.kernel, chosen.how, chosen.config) == ("attention_fwd_triton", "exact", other)


@pytest.mark.filterwarnings("ignore:.*is not used")
def test_pytorch_computes_what_compiles_with_no_config(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        on_cpu(monkeypatch, broken=frozenset({16, 128})) as language,
        pytest.warns(UserWarning, match=r"attention runs in PyTorch: no config of attention_fwd"),
    ):
        made = plan_of(call(), language, record(TMA))
    assert isinstance(made, PyTorchPlan) and made.chosen.workload == WORKLOAD


def test_pytorch_computes_where_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*arguments: Any) -> Any:
        raise TunefaError("no compiler found: pip install triton")

    fake: Any = FakeKernel()
    with (
        on_cpu(monkeypatch),
        pytest.warns(UserWarning, match="attention runs in PyTorch: no compiler found"),
    ):
        made = plan.best_plan(call(), H200, Fixed([]), [fake], no_compiler)
    assert made.chosen.why == "pytorch: no compiler found: pip install triton"


@pytest.mark.parametrize(("made", "chip", "why"), UNSERVED)
def test_pytorch_computes_what_no_kernel_serves(made: Call, chip: Chip, why: str) -> None:
    chosen = plan_of(made, FakeLanguage(), chip=chip).chosen
    assert (chosen.kernel, chosen.how, chosen.config) == ("pytorch", "pytorch", {})
    assert chosen.why.startswith("pytorch: ")
    with pytest.raises(TunefaError, match=why):
        raise TunefaError(chosen.why)


@pytest.mark.parametrize(("head_dim", "aligned"), [(64, True), (72, False)])
def test_the_real_kernel_compiles_its_default(
    monkeypatch: pytest.MonkeyPatch, head_dim: int, aligned: bool
) -> None:
    kernel = kernels.load("attention_fwd_triton")
    compiled = []

    def compile(*arguments: Any) -> Any:
        made = languages.load("triton").compile(*arguments)
        compiled.append((made.resources, arguments[-1]))
        return made

    shape = torch.randn(1, 64, 4, head_dim, dtype=torch.bfloat16)
    launch = FakeLaunch(lambda *tensors: None, 0, {})  # only a device loads what was compiled
    monkeypatch.setattr(languages.load("triton"), "prepare", lambda *arguments: launch)
    made = plan.best_plan(call(q=shape, k=shape, v=shape), H200, Fixed([]), [kernel], compile)
    assert isinstance(made, KernelPlan) and made.chosen.how == "default"
    assert (made.chosen.config["USE_TMA"] == 1) <= aligned
    ((resources, was_aligned),) = compiled
    assert resources.registers > 0 and was_aligned == aligned
