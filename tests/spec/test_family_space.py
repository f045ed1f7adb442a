"""tunefa/spec/family_space.py: a family's space answers as the whole space does."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.arch import Arch
from tunefa.spec.expr import Expr
from tunefa.spec.family_space import MAX_CONFIGS, FamilySpace
from tunefa.spec.kernel import Kernel
from tunefa.spec.workload import Workload

SM90 = archs.load("sm90")
OWN = [k for k in map(kernels.load, kernels.names()) if k.op == "fwd" and not k.is_library]


def default(kernel: Kernel, workload: Workload, arch: Arch) -> object:
    """The default, or why there is none."""
    try:
        return kernel.default(workload, arch)
    except TunefaError as error:
        return str(error)


@pytest.mark.parametrize("kernel", OWN, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    "text", ["h32_kv8_d128", "h8_d64_full", "h16_d96_e4m3", "h16_kv4_d64_softcap_full"]
)
def test_it_answers_as_the_whole_space_does(kernel: Kernel, text: str) -> None:
    first, chance = Workload.parse(f"{text}_q4096"), random.Random(text)
    own = replace(kernel, space=FamilySpace.of(kernel.space, first, SM90))
    configs = [each.config for each in kernel.space.defaults]
    for _ in range(8):
        rows = chance.choice([1, 7, 63, 64, 65, 2047, 2048, chance.randint(1100, 9000)])
        batch, keys = chance.randint(1, 64), chance.randint(1, 20000)
        workload = replace(first, batch=batch, seqlen_q=rows, seqlen_k=keys)
        assert own.why_not(workload, SM90) == kernel.why_not(workload, SM90)
        if kernel.space.vendor != SM90.vendor:
            continue
        assert own.priority(workload, SM90) == kernel.priority(workload, SM90)
        assert default(own, workload, SM90) == default(kernel, workload, SM90)
        for config in configs:
            asked = config, workload, SM90
            assert own.refusal(*asked) == kernel.refusal(*asked)
            whole = kernel.space.tiling_and_estimate(*asked)
            assert own.space.tiling_and_estimate(*asked) == whole
            assert own.space.tiling(*asked) == whole[0]


def test_a_config_that_is_not_in_the_space_is_refused_as_ever() -> None:
    kernel, workload = kernels.load("attention_fwd_triton"), Workload.parse("q4096")
    own = FamilySpace.of(kernel.space, workload, SM90)
    config = {**kernel.default(workload, SM90), "BLOCK_M": 17}
    assert own.refusal(config, workload, SM90) == kernel.refusal(config, workload, SM90)


def test_few_configs_are_kept() -> None:
    kernel, workload = kernels.load("attention_fwd_triton"), Workload.parse("q4096")
    own, config = FamilySpace.of(kernel.space, workload, SM90), kernel.default(workload, SM90)
    for number in range(MAX_CONFIGS + 2):
        own.of_config({**config, "BLOCK_M": number})
    assert len(own._configs) == 2


@pytest.mark.parametrize("kernel", OWN, ids=lambda kernel: kernel.name)
def test_what_runs_throughout_runs_everywhere(kernel: Kernel) -> None:
    if kernel.space.vendor != SM90.vendor:
        pytest.skip("no chip of NVIDIA runs it")
    first, chance = Workload.parse("h32_kv8_d128_q4096"), random.Random(kernel.name)
    space = FamilySpace.of(kernel.space, first, SM90)
    found = set()
    for config in [each.config for each in kernel.space.defaults] * 3:
        batch, m, n = chance.randint(1, 9), chance.choice([1, 15, 60, 200]), chance.randint(1, 200)
        rows, keys = range(m, m + 6), range(n, n + 6)
        pairs = [(each, other) for each in rows for other in keys]
        runs = [
            kernel.why_not(w, SM90) is None and kernel.refusal(config, w, SM90) is None
            for w in (replace(first, batch=batch, seqlen_q=a, seqlen_k=b) for a, b in pairs)
        ]
        throughout = space.runs_throughout(config, batch, rows, keys)
        assert throughout is all(runs), (config, batch, rows, keys)
        found.add(throughout)
    assert found


def test_a_rule_that_reads_both_lengths_is_asked_of_all_pairs() -> None:
    kernel, first = kernels.load("attention_fwd_triton"), Workload.parse("h32_kv8_d128_q4096")
    config = kernel.default(first, SM90)
    rules = {**kernel.space.rules, "not just these": Expr("seqlen_q != 103 or seqlen_k != 205")}
    space = FamilySpace.of(replace(kernel.space, rules=rules), first, SM90)
    assert not space.runs_throughout(config, 1, range(100, 110), range(200, 210))
    assert space.runs_throughout(config, 1, range(104, 110), range(200, 210))
    assert space.runs_throughout(config, 1, range(100, 110), range(206, 210))


def test_lengths_that_are_not_free_are_known() -> None:
    kernel = kernels.load("attention_decode_cuda_sm90")
    first = Workload.of(op="decode", heads=8, heads_kv=2, seqlen_k=4096)
    config = kernel.default(first, SM90)
    space = FamilySpace.of(kernel.space, first, SM90, ("batch", "seqlen_k"))
    assert space.runs(config) is None, "its rules read no batch and no number of keys"
    assert FamilySpace.of(kernel.space, first, SM90).runs(config) is not None
