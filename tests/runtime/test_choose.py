"""tunefa/runtime/choose.py: what runs where only workloads nearby were measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.fixed_store import Fixed
from tests.support.sample_records import dated, measured
from tunefa.compile.launch.driver import SeenDevice
from tunefa.costmodel import anchor
from tunefa.costmodel.decision import SURE
from tunefa.costmodel.estimate import Estimate
from tunefa.costmodel.version import model_version
from tunefa.runtime import choose
from tunefa.runtime.chip import Chip
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Resources
from tunefa.spec.workload import Workload
from tunefa.store import lookup
from tunefa.store.lookup import Choice
from tunefa.store.record import Record

SM90, H200 = archs.load("sm90"), "NVIDIA H200"
GLUON, CUDA = "attention_fwd_gluon_sm90", "attention_fwd_cuda_sm90"
LONG = "b4_h16_q4096_d128_full"


def record(kernel: str, median_us: float, device: str = H200, **changes: Any) -> Record:
    """The kernel's default for LONG, with changes."""
    config = {**kernels.load(kernel).default(Workload.parse(LONG), SM90), **changes}
    return measured(LONG, kernel=kernel, config=config, median_us=median_us, device=device)


def both(*records: Record, text: str, device: str = H200) -> tuple[Choice, Choice]:
    """The choices of lookup and of `choose`."""
    workload = Workload.parse(text)
    serving = kernels.serving(workload, SM90)
    target = Chip.of_seen(SeenDevice(device, (9, 0), 132, 141 * 2**30)).target
    assert target is not None
    asked = Fixed(records), workload, target, serving
    return lookup.lookup(*asked), choose.choose(*asked)


def model(monkeypatch: pytest.MonkeyPatch, expected_us: Callable[[Case, Config], float]) -> None:
    """Lets the cost model say these times."""

    def estimate(case: Case, config: Config, resources: Resources | None = None) -> Estimate:
        return Estimate(expected_us(case, config), 0.14, 0.14)

    monkeypatch.setattr(anchor, "estimate", estimate)


WIDE = record(CUDA, 732.0)  # tiles of 192 rows
NARROW = record(GLUON, 740.0)  # of 128


def test_tiles_that_make_another_wave_give_way() -> None:
    nearest, chosen = both(WIDE, NARROW, text="b1_h16_q2048_d128_full")  # 176 tiles, 256 narrow
    assert nearest.kernel == CUDA and nearest.config["WARPGROUPS"] == 3
    assert chosen.config["WARPGROUPS"] == 2 and chosen.gain > 0.2
    assert (chosen.how, chosen.record, chosen.octaves) == ("nearest", WIDE, nearest.octaves)
    assert chosen.why.endswith(f", a config {chosen.gain:.0%} faster than its own expected")


def test_a_default_that_was_not_measured_may_run() -> None:
    _, chosen = both(record(CUDA, 732.0, WARPGROUPS=1, BLOCK_N=128), text="b2_h16_q8192_d128_full")
    assert chosen.config == kernels.load(CUDA).default(Workload.parse(LONG), SM90)


def test_what_was_measured_for_others_is_specialized() -> None:
    """Sections of heads that leave some programs busy when most are done become larger."""
    near, text = Workload.parse("b4_h16_q4096_d128"), "b1_h40_q2500_d128"
    config = kernels.load(CUDA).default(near, SM90)
    causal = replace(record(CUDA, 300.0), workload=near, config=config)
    nearest, chosen = both(causal, text=text)
    assert nearest.config["L2_SECTION_MB"] == 8 and chosen.specialized == {"L2_SECTION_MB": 32}
    assert chosen.config == {**nearest.config, **chosen.specialized}
    assert chosen.why == f"{nearest.why}, with L2_SECTION_MB=32"
    default, chosen = both(text=text)
    assert default.how == chosen.how == "default" and chosen.specialized == {"L2_SECTION_MB": 32}
    assert chosen.why == f"{default.why}, with L2_SECTION_MB=32"
    exact, chosen = both(replace(causal, workload=Workload.parse(text)), text=text)
    assert chosen == exact and not chosen.specialized


def test_a_value_that_rules_refuse_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    module = kernels.load(CUDA).module
    monkeypatch.setattr(module, "specialize", lambda workload, config, sms: {"num_stages": 6})
    nearest, chosen = both(WIDE, text="b4_h16_q4000_d128_full")
    assert chosen == nearest
    monkeypatch.setattr(module, "specialize", lambda workload, config, sms: {"num_stages": 2})
    nearest, chosen = both(WIDE, text="b4_h16_q4000_d128_full")
    assert chosen.config == {**nearest.config, "num_stages": 2}


def test_what_a_record_says_of_its_kernel_counts() -> None:
    slow = record(GLUON, 7400.0)
    nearest, chosen = both(WIDE, slow, text="b1_h16_q2048_d128_full")
    assert chosen == nearest


def test_little_to_gain_changes_nothing() -> None:
    nearest, chosen = both(WIDE, NARROW, text="b2_h16_q8192_d128_full")
    assert chosen == nearest and chosen.gain == 0.0 and "expected" not in chosen.why


@pytest.mark.parametrize(("us", "chosen_is"), [(96.0, CUDA), (94.0, GLUON)])
def test_what_is_gained_must_be_more_than_the_model_errs_by(
    monkeypatch: pytest.MonkeyPatch, us: float, chosen_is: str
) -> None:
    """The two records are 1.5 octaves away, so the error is 5.7 %; here the model is right about
    LONG, and the nearest takes 100 us."""

    def expected_us(case: Case, config: Config) -> float:
        if str(case.workload) == str(WIDE.workload):
            return {CUDA: 732.0, GLUON: 740.0}[case.kernel.name]
        return {CUDA: 100.0, GLUON: us}.get(case.kernel.name, 100.0)

    model(monkeypatch, expected_us)
    nearest, chosen = both(WIDE, NARROW, text="b2_h16_q8192_d128_full")
    assert nearest.kernel == CUDA and chosen.kernel == chosen_is


@pytest.mark.parametrize("text", [LONG, "b4_h16_q4096_d64_full"])
def test_exact_records_and_defaults_are_left_alone(text: str) -> None:
    nearest, chosen = both(WIDE, NARROW, text=text)
    assert chosen == nearest and chosen.how in ("exact", "default")


def test_records_of_other_devices_compete_too() -> None:
    """The cost model is scaled on the device that a record was measured on."""
    h100 = "NVIDIA H100 80GB HBM3"
    nearest, chosen = both(WIDE, NARROW, text="b1_h16_q2048_d128_full", device=h100)
    assert nearest.config["WARPGROUPS"] == 3 and chosen.config["WARPGROUPS"] == 2
    assert nearest.how == chosen.how == "other-device" and chosen.gain > 0.2
    slow = record(GLUON, 7400.0)
    nearest, chosen = both(WIDE, slow, text="b1_h16_q2048_d128_full", device=h100)
    assert chosen == nearest


@pytest.mark.parametrize(
    ("text", "device", "changes"),
    [
        (LONG, "NVIDIA H100 80GB HBM3", False),
        (LONG.replace("_full", "_fp16_full"), H200, False),
        (LONG, "NVIDIA H100 PCIe", True),  # 114 SMs have other waves
    ],
)
def test_a_config_that_was_compared_for_this_workload_stays(
    monkeypatch: pytest.MonkeyPatch, text: str, device: str, changes: bool
) -> None:
    """The cost model finds a default that is twice as fast."""
    slow = record(CUDA, 732.0, BLOCK_N=64)

    def expected_us(case: Case, config: Config) -> float:
        return 100.0 if config == slow.config else 50.0

    model(monkeypatch, expected_us)
    nearest, chosen = both(slow, text=text, device=device)
    assert nearest.config == slow.config and (chosen != nearest) is changes


def test_the_scale_is_that_of_the_record_s_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[str, str]] = set()

    def expected_us(case: Case, config: Config) -> float:
        seen.add((case.device.name, str(case.workload)))
        return 100.0

    model(monkeypatch, expected_us)
    text = "b2_h16_q8192_d128_full"
    both(WIDE, text=text, device="NVIDIA H100 80GB HBM3")
    there = str(Workload.parse(text))
    assert seen == {(H200, str(WIDE.workload)), ("NVIDIA H100 80GB HBM3", there)}


def test_a_record_of_a_device_without_figures_is_no_scale() -> None:
    unknown = record(CUDA, 732.0, device="NVIDIA H999")
    nearest, chosen = both(unknown, text="b2_h16_q8192_d128_full")
    assert chosen == nearest and chosen.how == "other-device"


def test_a_device_that_the_model_does_not_know() -> None:
    own = record(CUDA, 732.0, device="NVIDIA H999")
    nearest, chosen = both(own, text="b1_h16_q2048_d128_full", device="NVIDIA H999")
    assert chosen == nearest and chosen.how == "nearest"


SHORT = "b1_h16_q1024_k16384_d128_full"
KNOWN = {"known": {"kernel": CUDA}, "decision": "expected to be faster"}


def prediction(config: Config, version: int | None = None, anchored: bool = True) -> Record:
    """A record that a search without a device predicted for SHORT."""
    model = model_version("predicted") if version is None else version
    return measured(
        SHORT, kernel=CUDA, config=dict(config), device=None, objective="predicted", mode=None,
        certificate=KNOWN if anchored else None,
        provenance=dated("2026-11-22T12:00:00Z", model=model),
    )  # fmt: skip


@pytest.mark.parametrize("near", [[], [WIDE]], ids=["no record", "a record nearby"])
def test_a_prediction_gives_way_to_a_measured_default(
    monkeypatch: pytest.MonkeyPatch, near: list[Record]
) -> None:
    """Unless it was compared with one, by today's model, and is faster beyond the error."""
    default = kernels.load(CUDA).default(Workload.parse(SHORT), SM90)
    config = {**default, "BLOCK_N": 64}

    def chosen(record: Record, gain: float) -> Config:
        faster = 100.0 * math.exp(-gain)
        model(monkeypatch, lambda _, each: faster if each == config else 100.0)
        return both(*near, record, text=SHORT)[1].config

    beyond = 1.1 * SURE * math.hypot(0.14, 0.025)
    assert chosen(prediction(config), beyond) == config
    assert chosen(prediction(config), beyond / 1.3) == default
    assert chosen(prediction(config, anchored=False), beyond) == default
    assert chosen(prediction(config, version=0), beyond) == default


def test_where_nothing_is_known_a_prediction_runs() -> None:
    workload, a100 = Workload.parse("q4096_d128"), Target.named("a100")
    serving = kernels.serving(workload, a100.arch)
    kernel = next(each for each in serving if each.name == "attention_fwd_triton")
    config = {**kernel.default(workload, a100.arch), "num_warps": 4}
    old = replace(
        prediction(config, version=0, anchored=False),
        kernel=kernel.name, arch="sm80", workload=workload,
    )  # fmt: skip
    chosen = choose.choose(Fixed([old]), workload, a100, serving)
    assert (chosen.how, chosen.config) == ("predicted", config)


TWO_PASS, FUSED = "attention_bwd_two_pass_gluon_sm90", "attention_bwd_cuda_sm90"
BRIEF = "bwd_b64_h32_q256_d64_full"


def of_two_passes(**changes: Any) -> Record:
    """A record of two passes for BRIEF: their default, with changes."""
    config = {**kernels.load(TWO_PASS).default(Workload.parse(BRIEF), SM90), **changes}
    return measured(BRIEF, kernel=TWO_PASS, config=config, median_us=499.0, device=H200)


def chosen(record: Record, text: str) -> Choice:
    serving = kernels.serving(Workload.parse(text), SM90)
    ours = [kernel for kernel in serving if not kernel.is_library]
    return choose.choose(Fixed((record,)), Workload.parse(text), Target.named(H200), ours)


@pytest.mark.parametrize("text", ["bwd_b4_h32_q4096_d64_full", "bwd_b16_h32_q1024_d64_full"])
def test_a_default_confirmed_elsewhere_does_not_replace_that_of_another_kernel(text: str) -> None:
    """Two passes are the default for short sequences only. On an H200 they take 10 to 15 % more
    time for long ones."""
    found = chosen(of_two_passes(), text)
    assert found.kernel == FUSED and found.record is None
    assert found.config == kernels.load(FUSED).default(Workload.parse(text), SM90)


def test_a_default_confirmed_elsewhere_runs_where_it_is_the_default() -> None:
    for text in (BRIEF, "bwd_b48_h32_q350_d64_full"):
        found = chosen(of_two_passes(), text)
        assert found.kernel == TWO_PASS and found.record is not None


def test_a_config_that_a_search_preferred_to_the_default_counts_for_others() -> None:
    preferred = of_two_passes(PERSISTENT1=0)
    assert chosen(preferred, BRIEF).config == preferred.config
    assert chosen(preferred, "bwd_b16_h32_q1024_d64_full").record is not None
