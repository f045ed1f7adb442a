"""tunefa/runtime/compiled.py: a process compiles a binary once a device, and not for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.fake_kernel import FakeKernel, FakeLanguage
from tunefa.compile import languages
from tunefa.compile.contract import CompileError
from tunefa.runtime import compiled
from tunefa.runtime.compiled import Compiler
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL: Any = FakeKernel()
CASE = Case(KERNEL, Workload.parse("b2_q512_d64"), Target.named("h200"))
CONFIG = {"BLOCK_M": 128, "USE_TMA": 1}


@pytest.fixture
def language(monkeypatch: pytest.MonkeyPatch) -> FakeLanguage:
    made = FakeLanguage()
    monkeypatch.setattr(languages, "load", lambda name: made)
    return made


def longer(case: Case) -> Case:
    return replace(case, workload=replace(case.workload, batch=7, seqlen_q=999))


def test_another_length_takes_the_same_binary(language: FakeLanguage) -> None:
    compiler = Compiler()
    first = compiler(CASE, CONFIG, True)
    assert compiler(longer(CASE), CONFIG, True) is first
    assert language.compiled == [(CONFIG, True)]


@pytest.mark.parametrize("change", ["config", "alignment", "head_dim", "arch"])
def test_what_a_binary_depends_on(language: FakeLanguage, change: str) -> None:
    compiler = Compiler()
    first = compiler(CASE, CONFIG, True)
    case, config, aligned = CASE, CONFIG, change != "alignment"
    if change == "config":
        config = {**CONFIG, "BLOCK_M": 64}
    if change == "head_dim":
        case = replace(CASE, workload=replace(CASE.workload, head_dim=128))
    if change == "arch":
        case = replace(CASE, target=Target.named("sm80"))
    assert compiler(case, config, aligned) is not first and len(language.compiled) == 2


def test_each_device_has_its_own(language: FakeLanguage) -> None:
    assert Compiler()(CASE, CONFIG, True) is not Compiler()(CASE, CONFIG, True)


def test_what_does_not_compile_is_tried_again(language: FakeLanguage) -> None:
    compiler = Compiler()
    language.broken = frozenset({128})
    with pytest.raises(CompileError):
        compiler(CASE, CONFIG, True)
    language.broken = frozenset()
    assert compiler(CASE, CONFIG, True).binary == 1


def test_not_everything_is_kept(language: FakeLanguage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MAX_COMPILED", 2)
    compiler = Compiler()
    for size in (16, 32, 64, 64, 16):
        compiler(CASE, {**CONFIG, "BLOCK_M": size}, True)
    assert [config["BLOCK_M"] for config, _ in language.compiled] == [16, 32, 64, 16]


def test_what_is_found_is_not_compiled_and_is_known_once_a_plan_has_it(
    language: FakeLanguage,
) -> None:
    bundled = language.compile(CASE, CONFIG, True)
    language.compiled.clear()
    asked: list[bool] = []

    def find(case: Case, config: Any, aligned: bool) -> Any:
        asked.append(aligned)
        return bundled if aligned else None

    compiler = Compiler(find)
    assert compiler.known(CASE, CONFIG, True) is None and asked == []  # it would not be loaded
    assert compiler.found(CASE, CONFIG, True) is bundled
    assert compiler.known(longer(CASE), CONFIG, True) is bundled
    assert compiler(CASE, CONFIG, True) is bundled and asked == [True] and not language.compiled
    assert compiler.found(CASE, CONFIG, False) is None
    assert compiler(CASE, CONFIG, False) is not bundled and language.compiled == [(CONFIG, False)]
