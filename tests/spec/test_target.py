"""tunefa/spec/target.py: which chip a name or a driver means, and what a case asks its kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

CASE = Case.from_names("attention_fwd_triton", "q4096_d128", "h200")


def test_an_arch_means_its_default_device_and_a_device_itself() -> None:
    family, product = Target.named("sm90"), Target.named("h200")
    assert family.arch == product.arch and family.device == family.arch.device()
    assert str(product) == "NVIDIA H200 (sm90)"
    assert product.is_known_product and family.is_known_product
    with pytest.raises(TunefaError, match="unknown arch or device 'h300'"):
        Target.named("h300")


def test_a_driver_s_name_is_found() -> None:
    assert Target.seen("NVIDIA H200", (9, 0), 132) == Target.named("h200")


def test_every_name_of_a_product_is_one_device_and_every_other_product_its_own() -> None:
    """A record has the name that the runtime looks for, under whatever name the driver has it."""
    product = Target.named("gh200")
    assert Target.seen("NVIDIA GH200 480GB", (9, 0), 132) == product
    assert Target.seen("NVIDIA GH200 120GB", (9, 0), 132) == product
    server = Target.seen("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), 188)
    assert server.device.name == "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert server.device.match == Target.named("rtx pro 6000").device.match, "with its figures"


def test_a_product_without_an_entry_has_its_arch_s_figures_and_its_own_sms() -> None:
    seen = Target.seen("NVIDIA RTX 4090 Laptop GPU", (8, 9), 76)
    assert not seen.is_known_product
    assert (seen.device.name, seen.device.sms) == ("NVIDIA RTX 4090 Laptop GPU", 76)
    assert seen.device.match == ("nvidia rtx 4090 laptop gpu",)
    default = archs.load("sm89").device()
    own = replace(seen.device, name=default.name, match=default.match, sms=default.sms)
    assert own == default, "all other figures are the default device's"


def test_a_workload_must_fit_the_memory() -> None:
    """Beyond all devices it is refused even where the memory is not known, as of an NPU."""
    h200, npu = Target.named("h200"), Target.named("910B3")
    laptop = Target.seen("NVIDIA RTX 4090 Laptop GPU", (8, 9), 76)
    large = Workload.parse("b64_q64k")  # 80 GiB and 0.5 GiB for the logsumexp
    for target in (h200, npu, laptop):
        target.check_memory(large)
    said = "needs 80.5 GiB for Q, K, V, .* and NVIDIA H100 80GB HBM3 has 80.0 GiB: take fewer"
    with pytest.raises(TunefaError, match=said):
        Target.named("h100").check_memory(large)
    hidden = Workload.parse("b64_h32_kv32_q1k_k128k_w1024")  # 128 GiB of K and V, 1 of Q and output
    with pytest.raises(TunefaError, match=r"needs 129\.0 GiB"):
        Target.named("h100").check_memory(hidden)
    for target in (npu, laptop):
        with pytest.raises(TunefaError, match=r"no device has more than 1,024\.0 GiB"):
            target.check_memory(Workload.parse("b1000000000_q8192"))


def test_a_family_that_there_is_no_file_for_says_what_to_do() -> None:
    with pytest.raises(TunefaError, match=r"Tesla T4 is sm75, .* tunefa/spec/archs/sm75\.yaml"):
        Target.seen("Tesla T4", (7, 5), 40)


def test_a_case_travels_as_names() -> None:
    """Its device is the arch's default then: what is compiled does not depend on it."""
    there = Case.from_names(*CASE.names)
    assert CASE.names == ("attention_fwd_triton", str(CASE.workload), "sm90")
    assert (there.workload, there.arch) == (CASE.workload, CASE.arch)
    assert there.kernel.source_hash == CASE.kernel.source_hash


def test_a_case_asks_its_kernel() -> None:
    default = CASE.default()
    assert CASE.why_not() is None and CASE.refusal(default) is None
    assert default in CASE.feasible().configs
    assert CASE.tiling_and_estimate(default) == (CASE.tiling(default), CASE.estimate(default))
    refused = {**default, "BLOCK_M": 256, "BLOCK_N": 256, "num_stages": 5}
    assert CASE.refusal(refused) is not None and CASE.refusal(refused) in CASE.refusals(refused)
