"""The facts that the runtime relies on where a family's calls differ in batch and lengths only."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tunefa.compile import languages
from tunefa.runtime.family_binaries import divisors
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

COMPILED = [k for k in map(kernels.load, kernels.names()) if k.op == "fwd" and not k.is_library]


def lengths(chance: random.Random) -> dict[str, Any]:
    """Lengths that blocks divide, or not, with some relation between them."""
    keys = chance.choice([1, 16, 64, 80]) * chance.randint(1, 60) + chance.choice([0, 0, 1])
    before = chance.choice([0, -7, 64, 128, chance.randint(0, 300)])
    return {"batch": chance.randint(1, 9), "seqlen_q": max(1, keys - before), "seqlen_k": keys}


@pytest.mark.parametrize("kernel", COMPILED, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("text", ["h32_kv8_d128", "h8_d64_full", "h8_kv2_d96_softcap_full"])
def test_a_binary_depends_on_lengths_by_their_divisors_alone(kernel: Kernel, text: str) -> None:
    target = Target.named("sm90" if kernel.space.vendor == "nvidia" else "ascend910b3")
    first, chance = Workload.parse(f"{text}_q4096"), random.Random(text)
    if kernel.why_not(first, target.arch):
        pytest.skip("it serves no such family")
    language = languages.load(kernel.language)
    configs = [each.config for each in kernel.space.defaults if _fits(kernel, each.config, first)]
    found: dict[Any, Any] = {}
    shared = 0
    for _ in range(300):
        workload = replace(first, **lengths(chance))
        for number, config in enumerate(configs[:4]):
            made = language.binary_key(Case(kernel, workload, target), config, True)
            key = number, divisors(workload)
            shared += key in found
            assert found.setdefault(key, made) == made, workload
    assert shared > 100


def _fits(kernel: Kernel, config: dict[str, Any], workload: Workload) -> bool:
    arch = Target.named("sm90" if kernel.space.vendor == "nvidia" else "ascend910b3").arch
    return kernel.refusal(config, workload, arch) is None
