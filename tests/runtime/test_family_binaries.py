"""tunefa/runtime/family_binaries.py: what a binary depends on. `tests/contracts/test_families.py`
compares it with all kernels, and test_family_plans.py has the rest."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_kernel import DEFAULT, H200, FakeKernel, FakeLanguage
from tunefa.compile import languages
from tunefa.runtime.cells import Workloads
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.family_binaries import FamilyBinaries, divisors
from tunefa.runtime.family_facts import FamilyFacts
from tunefa.runtime.tables import TableCache
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload
from tunefa.store.lookup import Choice


def test_blocks_have_multiples_of_16_rows_and_keys() -> None:
    for rows, keys, expected in (
        (100, 333, (0, 0, 1)),
        (96, 333, (96, 0, 1)),
        (100, 356, (0, 0, 256)),
        (160, 64, (160, 64, -1)),
    ):
        workload = Workload.parse(f"h8_q{rows}_k{keys}_d64")
        assert divisors(workload) == expected


def test_a_binary_is_known_when_it_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    language, kernel = FakeLanguage(), FakeKernel()
    fake: Any = kernel
    monkeypatch.setattr(languages, "load", lambda name: language)
    assert H200.target is not None
    case = Case(fake, Workload.parse("h8_q100_d64"), H200.target)
    compiler = Compiler()
    facts = FamilyFacts(Workloads(case.workload), H200.target, -1, "bshd", None)
    made = FamilyBinaries(facts, compiler, TableCache(-1))
    choice = Choice(kernel.name, dict(DEFAULT), "default", None)
    assert made.compiled(case, choice) is None
    binary = compiler(case, DEFAULT, True)
    assert made.compiled(case, choice) is binary is made.compiled(case, choice)
