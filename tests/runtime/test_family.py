"""tunefa/runtime/family.py: a family's choices are those that are made anew."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.support.fixed_store import Fixed
from tests.support.sample_records import measured
from tunefa import assets
from tunefa.compile import provenance
from tunefa.errors import TunefaError
from tunefa.runtime.choose import Chooser
from tunefa.runtime.family import Family
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import results
from tunefa.store.record import Record

H200 = Target.named("h200")


@pytest.fixture(scope="module")
def own() -> list[Kernel]:
    return [each for each in kernels.usable() if each.op == "fwd" and not each.is_library]


@pytest.fixture(scope="module")
def shipped() -> list[Record]:
    return results.Store([assets.root("results")]).records()


@pytest.mark.parametrize(
    "text", ["h16_kv16_d128_full", "h32_kv8_d128", "h32_kv8_d64", "h16_d160", "h16_d256_full"]
)
def test_choices_are_those_that_are_made_anew(
    text: str, own: list[Kernel], shipped: list[Record]
) -> None:
    """Some workloads are alone, others in rows. `python -m benchmarks.choice` compares more."""
    first, chance = Workload.parse(f"{text}_q4096"), random.Random(text)
    made, anew = Family(Fixed(shipped), first, H200, own), Chooser(Fixed(shipped), H200, own)
    for _ in range(20):
        batch, keys = chance.choice([1, 3, 8, 40]), round(2 ** chance.uniform(4, 14))
        rows = chance.choice([1, keys, round(2 ** chance.uniform(1, 13))])
        for more in range(chance.choice([1, 20])):
            grown = rows + more if rows > 1 else 1
            workload = replace(first, batch=batch, seqlen_q=grown, seqlen_k=keys + more)
            quick = made.quick(workload)
            if more % 4:
                continue
            expected = anew.choose(workload)
            assert (quick.kernel, quick.config) == (expected.kernel, expected.config), workload
            assert (quick.how, quick.record) == (expected.how, expected.record)
            assert quick.octaves == expected.octaves
            assert quick.specialized == expected.specialized


def test_what_was_measured_for_a_workload_wins(own: list[Kernel], shipped: list[Record]) -> None:
    """Also over what is remembered of its neighbours, and if it is slow."""
    first = Workload.parse("b2_h32_kv8_q1000_d128")
    kernel = next(each for each in own if each.name == "attention_fwd_triton")
    config = kernel.default(first, H200.arch)
    exact = measured(str(first), kernel=kernel.name, config=config, median_us=1e6)
    made = Family(Fixed([exact, *shipped]), first, H200, own)
    for length in (993, 1008):
        made.quick(replace(first, seqlen_q=length, seqlen_k=length))
    found = made.quick(first)
    assert (found.how, found.record, found.config) == ("exact", exact, config)
    beside = made.quick(replace(first, seqlen_q=1001, seqlen_k=1001))
    assert beside.kernel != kernel.name and beside.how == "nearest"


def test_a_remembered_config_that_a_rule_refuses_does_not_run(
    own: list[Kernel], shipped: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Workload.parse("b2_h32_kv8_q1000_d128")
    made = Family(Fixed(shipped), first, H200, own)
    lengths = [replace(first, seqlen_q=each, seqlen_k=each) for each in (993, 1008, 1001)]
    best = [made.quick(each) for each in lengths]
    assert best[0].config == best[2].config
    kernel = made.kernel(best[0].kernel)
    refusal = type(kernel.space).refusal

    def refuses(space: Any, config: Any, workload: Workload, arch: Any) -> str | None:
        if workload == lengths[2] and config == best[0].config:
            return "it is refused"
        return refusal(space, config, workload, arch)

    monkeypatch.setattr(type(kernel.space), "refusal", refuses)
    assert made.quick(lengths[2]).config != best[0].config


def test_records_of_one_question_supersede_each_other(own: list[Kernel]) -> None:
    first = Workload.parse("b2_h32_kv8_q1000_d128")
    config = kernels.load("attention_fwd_cuda_sm90").default(first, H200.arch)
    changed = {**config, "RESCALE_THRESHOLD": 0}
    old = measured(str(first), kernel="attention_fwd_cuda_sm90", config=config, median_us=1.0)
    later = {**old.provenance, "date": "2030-01-01T00:00:00Z"}
    new = replace(old, config=changed, median_us=2.0, provenance=later)
    for order in ([old, new], [new, old]):
        found = Family(Fixed(order), first, H200, own).quick(first)
        assert found.config == changed


def test_the_whole_store_s_remark_is_said(own: list[Kernel]) -> None:
    class Remarking(Fixed):
        def remark(self, record: Record) -> str:
            return "made elsewhere"

    first = Workload.parse("b2_h32_kv8_q1000_d128")
    config = kernels.load("attention_fwd_cuda_sm90").default(first, H200.arch)
    record = measured(str(first), kernel="attention_fwd_cuda_sm90", config=config)
    made = Family(Remarking([record]), first, H200, own)
    assert made.quick(first).why.endswith("; made elsewhere")


def test_without_a_kernel_it_says_why() -> None:
    first = Workload.parse("b2_h32_kv8_q1000_d128")
    made = Family(Fixed([]), first, H200, [])
    made.prepare()
    with pytest.raises(TunefaError, match="no kernel serves"):
        made.quick(first)


def test_preparing_leaves_little_for_calls(
    own: list[Kernel], shipped: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No config is prepared when lengths are asked for that a server meets."""
    first = Workload.parse("b2_h32_kv8_q1000_d128")
    made = Family(Fixed(shipped), first, H200, own)
    made.prepare()
    times: Any = made.times
    before = len(times._configs)
    for length in (70, 300, 900, 2500, 6000, 12000):
        made.quick(replace(first, seqlen_q=length, seqlen_k=length))
    assert len(times._configs) <= before + 2


def test_records_of_other_heads_are_judged_by_their_own_workloads() -> None:
    """Whether a record has the default of its workload depends on the heads of that."""
    serving = [each for each in kernels.usable() if each.op == "bwd" and not each.is_library]
    chance, arch = random.Random(0), H200.arch
    lengths, heads = [300, 512, 1024, 2048, 4096], [1, 2, 4, 8]

    def drawn() -> Workload:
        heads_kv, length = chance.choice(heads), chance.choice(lengths)
        of_heads = f"h{heads_kv * chance.choice(heads)}_kv{heads_kv}"
        return Workload.parse(f"bwd_b{chance.choice(heads)}_{of_heads}_q{length}_d64_full")

    for _ in range(60):
        known = []
        for workload in (drawn(), drawn(), drawn()):
            kernel = chance.choice([k for k in serving if k.why_not(workload, arch) is None])
            own = {**provenance.quick(kernel), "date": "2026-01-01T00:00:00+00:00", "trials": 1}
            changes = {"config": dict(kernel.default(workload, arch)), "provenance": own}
            known.append(measured(str(workload), kernel=kernel.name, **changes))
        first = drawn()
        family, anew = (
            Family(Fixed(known), first, H200, serving),
            Chooser(Fixed(known), H200, serving),
        )
        for length in (300, 1024, 3000):
            asked = replace(first, seqlen_q=length, seqlen_k=length)
            quick, slow = family.choose(asked), anew.choose(asked)
            assert (quick.kernel, quick.config) == (slow.kernel, slow.config), asked
