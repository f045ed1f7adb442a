"""tunefa/runtime/bundle_builder.py: what is chosen and compiled for a bundle, without a device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.bundled_process import WORKLOADS
from tests.support.made_here import made_here
from tests.support.sample_bundles import compiled
from tunefa.compile import languages, stored
from tunefa.compile.contract import CompileError
from tunefa.compile.pool import Pending
from tunefa.runtime import bundle_builder
from tunefa.runtime.choose import Chooser
from tunefa.spec import kernel as kernels
from tunefa.spec import looked_up
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Trial
from tunefa.spec.workload import Workload
from tunefa.store import results as store

H200 = Target.named("h200")
SMALL = Workload.parse("b1_h2_q64_d64_fp32")


def test_each_workload_gets_what_the_runtime_would_choose() -> None:
    contents, images = compiled()
    plans = {plan.workload: plan for plan in contents.plans if not plan.beside}
    assert [str(workload) for workload in plans] == list(WORKLOADS)
    own = [each for each in kernels.usable() if not each.is_library]
    for workload, plan in plans.items():
        serving = [each for each in own if each.op == workload.op]
        choice = Chooser(store.Store(()), H200, serving).choose(looked_up.of_record(workload))
        assert (plan.kernel, plan.config) == (choice.kernel, choice.config)
        assert (plan.arch, plan.device, plan.how) == ("sm90", "NVIDIA H200", "default")
        case = Case(kernels.load(plan.kernel), workload, H200)
        assert stored.digest(case, plan.config, True) in contents.binaries
    used = {parts["image"] for each in contents.binaries.values()
            for parts in each["steps"].values()}  # fmt: skip
    assert used == set(images) and contents.left_out == []
    assert set(contents.kernels) == {plan.kernel for plan in contents.plans}
    for name, made in contents.kernels.items():
        assert made["source_hash"] == kernels.load(name).source_hash and made["compiler"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("attention_fwd_cuda_sm90", "b1_h8_kv2_q512_d128_bf16_full"),
        ("attention_fwd_triton", "b1_h8_kv2_q300_d64_fp16"),
        ("attention_fwd_gluon_sm90", "b1_h8_kv2_q512_d128_bf16"),
        ("attention_bwd_triton", "bwd_b1_h8_q512_d64_bf16"),
        ("attention_bwd_cuda_sm90", "bwd_b1_h8_q512_d128_bf16"),
    ],
)
def test_binaries_of_all_lengths_are_among_those_that_are_compiled(name: str, text: str) -> None:
    case = Case(kernels.load(name), Workload.parse(text), H200)
    config = case.default()
    known = {stored.digest(each, config, True) for each in bundle_builder.lengths(case, config)}
    assert len(known) < 12
    for rows in (*range(65, 400, 7), 512, 1024, 4096, 8191):
        for keys in (rows, rows + 1, 64 * rows, rows + 4096):
            other = replace(case, workload=replace(case.workload, seqlen_q=rows, seqlen_k=keys))
            if other.why_not() is None and other.refusal(config) is None:
                assert stored.digest(other, config, True) in known, (rows, keys)


def test_a_window_comes_with_sequences_that_it_does_not_reach() -> None:
    planned = bundle_builder._planned([Workload.parse("b1_h4_q1024_d64_fp16_w256")], [H200], False)
    plans = [*planned.plans.values()]  # compiling them takes seconds, and changes none
    beside = [plan for plan in plans if plan.beside]
    assert Workload.parse("b1_h4_q256_d64_fp16") in [plan.workload for plan in beside]
    assert {plan.beside for plan in beside} == {str(plans[0].workload)}
    assert len({plan.workload for plan in plans}) == len(plans)


def test_exact_has_no_binary_beyond_the_workload() -> None:
    contents, images = bundle_builder.build([SMALL], [H200], workers=1, exact=True)
    assert len(contents.plans) == len(contents.binaries) == len(images) == 1


def test_a_record_is_kept_with_the_plan_that_was_chosen_from_it() -> None:
    record = made_here("b1_h4_kv2_q256_d64_bf16")
    store.default_store().add(record)
    contents, _ = bundle_builder.build([record.workload], [H200], 1, exact=True)
    (plan,) = contents.plans
    assert (plan.kernel, plan.config) == (record.kernel, record.config)
    assert [each.origin for each in contents.records] == [record.origin]


def test_an_unconfirmed_record_is_remarked_on_for_other_machines() -> None:
    record = made_here("b1_h4_kv2_q256_d64_bf16", {"triton": "3.6.0"})
    store.default_store().add(record)
    (plan,) = bundle_builder.build([record.workload], [H200], 1, exact=True)[0].plans
    assert "measured with Triton 3.6.0, and its binary was made with 3." in plan.why
    assert "this machine" not in plan.why


def test_what_cannot_be_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    odd, a100 = Workload.parse("b1_h2_q64_d64_e4m3"), Target.named("a100")
    told: list[tuple[int, int]] = []
    contents, images = bundle_builder.build(
        [odd], [a100], progress=lambda done, of: told.append((done, of))
    )
    assert contents.plans == [] and images == {} and told == []
    assert contents.left_out[0]["what"] == f"{odd} on {a100}"
    assert contents.left_out[0]["why"].startswith("no kernel serves ")

    def failed(self: Pending) -> Trial:
        return Trial(self.config, "compile_failed", "ptxas says no")

    monkeypatch.setattr(Pending, "trial", failed)
    contents, images = bundle_builder.build([SMALL], [H200], 1, exact=True)
    assert contents.plans == [] and contents.binaries == {}
    (note,) = contents.left_out
    assert note["what"] == f"{SMALL} on NVIDIA H200 (sm90)" and "ptxas says no" in note["why"]


def test_what_cannot_be_stored_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def stored(binary: object) -> None:
        raise CompileError("a starts by Triton's launcher alone")

    monkeypatch.setattr(languages.load("triton"), "stored", stored)
    contents, _ = bundle_builder.build([SMALL], [H200], 1, exact=True)
    assert contents.left_out[0]["why"] == "a starts by Triton's launcher alone"


def test_libraries_are_left_out_by_name() -> None:
    library = kernels.load("attention_fwd_cudnn")
    workload = Workload.parse("b1_h2_q256_d64_bf16")
    case = Case(library, workload, H200)
    record = made_here(str(workload), kernel=library.name, config=case.default())
    store.default_store().add(record)
    contents, _ = bundle_builder.build([workload], [H200], exact=True)
    assert [plan.kernel.endswith("cudnn") for plan in contents.plans] == [False]
    (note,) = contents.left_out
    assert note["what"] == f"attention_fwd_cudnn for {workload} on NVIDIA H200 (sm90)"
    assert "it calls an installed library and has no binary, and was the fastest" in note["why"]
