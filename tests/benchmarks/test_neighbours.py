"""benchmarks/neighbours.py: its workloads, what the choice is compared with, what a regret is."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import neighbours
from benchmarks.neighbours import Regret, Rival
from tests.support.fake_kernel import FakeKernel, FakeLanguage
from tests.support.fake_objective import KERNEL, SM90, TARGET, WORKLOAD, user_store
from tests.support.own_kernels import FAULTY_SOURCE, FAULTY_SPACE, OwnKernels
from tests.support.sample_records import predicted
from tunefa import assets
from tunefa.compile import languages
from tunefa.compile.contract import Compiled, LaunchSpec
from tunefa.compile.workers import Workers
from tunefa.measure import check
from tunefa.runtime import choose
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload
from tunefa.store.lookup import Choice
from tunefa.store.results import Store

CASE = Case(KERNEL, WORKLOAD, TARGET)
CHOICE = Choice("attention_fwd_triton", {}, "default", None)
SMALL = Workload.parse("b1_h2_q128_d64")


def test_twenty_workloads_that_nobody_tuned() -> None:
    workloads = {Workload.parse(text) for text in neighbours.WORKLOADS}
    assert len(workloads) == len(neighbours.WORKLOADS) == 20
    tuned = {record.workload for record in Store([assets.root("results")]).records()}
    assert not workloads & tuned
    for workload in workloads:
        assert kernels.serving(workload, SM90)


def listed(known: Store, serving: list[kernels.Kernel]) -> list[Rival]:
    """The rivals of what is chosen for WORKLOAD."""
    choice = choose.choose(known, WORKLOAD, TARGET, serving)
    return neighbours.rivals(known, choice, [Case(each, WORKLOAD, TARGET) for each in serving])


def changed(one: Config, other: Config) -> int:
    """In how many parameters two configs of a kernel differ."""
    return sum(one[name] != other[name] for name in one)


def test_all_that_differ_from_the_choice_in_one_parameter_or_two_are_its_rivals() -> None:
    chosen, *others = listed(user_store(), [KERNEL])
    assert chosen.config == KERNEL.default(WORKLOAD, SM90)
    feasible = KERNEL.space.feasible(WORKLOAD, SM90).configs
    near = [config for config in feasible if changed(config, chosen.config) in (1, 2)]
    assert len(others) == len(near) > 30
    assert all(each.config in near for each in others)


def test_defaults_and_configs_of_records_are_rivals_too() -> None:
    known, serving = user_store(), kernels.serving(WORKLOAD, SM90)
    config: Any = dict(KERNEL.space.feasible(WORKLOAD, SM90).configs[7])
    known.add(predicted("fwd_b1_h2_kv2_q128_d128_fp16", config=config, kernel=KERNEL.name))
    found = listed(known, serving)
    chosen, others = found[0], [(each.case.kernel.name, each.config) for each in found]
    choice = choose.choose(known, WORKLOAD, TARGET, serving)
    assert (chosen.case.kernel.name, chosen.config) == (choice.kernel, choice.config)
    assert (KERNEL.name, config) in others
    for kernel in serving:
        assert (kernel.name, kernel.default(WORKLOAD, SM90)) in others
    beside = [each for each in found if each.case.kernel.name != chosen.case.kernel.name]
    records = int(chosen.case.kernel.name != KERNEL.name)
    assert len(beside) == len(serving) - 1 + records, "a default of each other kernel, the record"


def test_no_rival_is_listed_twice_or_refused() -> None:
    known = user_store()
    default = KERNEL.default(WORKLOAD, SM90)
    once = len(listed(known, [KERNEL]))
    near = "fwd_b1_h8_kv2_q1536_d64"
    for config in (default, {**default, "BLOCK_M": 256, "BLOCK_N": 256}, {"BLOCK_M": 64}):
        known.add(predicted(near, config=config, kernel=KERNEL.name))
    known.add(predicted(near, kernel="attention_fwd_gluon_sm90"))  # does not take part
    assert len(known.records()) == 4
    found = listed(known, [KERNEL])
    assert len({each.key for each in found}) == len(found) == once
    assert all(KERNEL.refusal(each.config, WORKLOAD, SM90) is None for each in found)


def test_regret_is_over_the_fastest() -> None:
    gluon = replace(CASE, kernel=kernels.load("attention_fwd_gluon_sm90"))
    timed = [(Rival(CASE, {}), 120.0), (Rival(gluon, {}), 100.0), (Rival(CASE, {}), 110.0)]
    found = neighbours.regret(CHOICE, WORKLOAD, timed, 40)
    assert (found.chosen, found.found) == ("attention_fwd_triton", "attention_fwd_gluon_sm90")
    assert (found.chosen_us, found.found_us, found.timed) == (120.0, 100.0, 40)
    assert found.excess == pytest.approx(0.2)
    assert found.why.startswith("default: no result applies")


def test_a_choice_that_is_the_fastest_is_not_regretted() -> None:
    timed = [(Rival(CASE, {}), 100.0), (Rival(CASE, {}), 101.0)]
    assert neighbours.regret(CHOICE, WORKLOAD, timed, 2).excess == 0.0


def test_the_few_fastest_are_timed_anew_beside_the_choice() -> None:
    medians = [50.0, 9.0, 30.0, 8.0, 7.0, 40.0, 10.0, 6.0]
    assert neighbours.finalists(medians) == [0, 7, 4, 3, 1, 6]
    assert neighbours.finalists([50.0, 60.0]) == [0, 1]


def test_rivals_that_do_not_compile_are_left_out(
    own_kernels: OwnKernels, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty, other = (
        Case(own_kernels.add(name, FAULTY_SOURCE, FAULTY_SPACE), SMALL, TARGET)
        for name in ("faulty_rival", "faulty_rival_of_another_name")
    )
    good, bad = (Rival(faulty, {"FAULT": fault}) for fault in ("none", "error"))
    last, worse = (Rival(other, {"FAULT": fault}) for fault in ("none", "exit"))
    with Workers(1) as processes:
        found = neighbours.compiled([good, bad, worse, last], processes)
        assert [each.key for each in found] == [good.key, last.key]
        assert "4 configs, of which 2 do not compile" in capsys.readouterr().err
        with pytest.raises(ValueError, match=r"the choice does not compile: .*told to fail"):
            neighbours.compiled([bad, good], processes)


class Erring(FakeLanguage):
    """A BLOCK_M of 32 is wrong by a tenth, one of 64 leaves the last row."""

    def launch(self, spec: LaunchSpec, compiled: Compiled, tensors: Any) -> None:
        out: Tensor = tensors[3]
        before, block_m = out.clone(), spec.config["BLOCK_M"]
        super().launch(spec, compiled, tensors)
        if block_m == 32:
            out *= 1.1
        if block_m == 64:
            out[:, :, -1] = before[:, :, -1]


@pytest.fixture
def erring(monkeypatch: pytest.MonkeyPatch) -> None:
    language = Erring(broken=frozenset({128}))
    monkeypatch.setattr(languages, "load", lambda name: language)


def right(*block_m: int) -> list[int]:
    """Returns the configs of a fake kernel that are found right, the choice first."""
    kernel: Any = FakeKernel()
    case = Case(kernel, SMALL, TARGET)
    rivals = [Rival(case, {"BLOCK_M": each}) for each in block_m]
    made = check.tensors(SMALL, "cpu", seed=0)
    return [each.config["BLOCK_M"] for each, _ in neighbours.checked(rivals, made)]


@pytest.mark.usefixtures("erring")
def test_wrong_rivals_are_left_out_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert right(16, 32, 64, 128, 8) == [16, 8]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert said[0].endswith("{'BLOCK_M': 32}: differs from the choice by 1.0e-01")
    assert said[1].endswith("{'BLOCK_M': 64}: differs from the choice by nan")
    assert said[2].endswith("{'BLOCK_M': 128}: ptxas says no")


@pytest.mark.usefixtures("erring")
@pytest.mark.parametrize("block_m", [32, 64])
def test_a_wrong_choice_is_an_error(block_m: int) -> None:
    with pytest.raises(ValueError, match="the choice is wrong: the output of row"):
        right(block_m, 16)


def test_an_element_that_is_not_written_is_a_difference() -> None:
    out, ones = torch.ones(4), torch.ones(4)
    assert neighbours.difference(lambda: out.fill_(1.5), out, ones) == 0.5
    assert math.isnan(neighbours.difference(lambda: out[:3].fill_(1.0), out, ones))


def test_what_cannot_be_measured_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def measured(workload: Workload, known: Store, processes: Workers, rounds: int) -> Regret:
        if workload == SMALL:
            raise ValueError("the choice is wrong")
        times = 10.0 + rounds, 10.0
        return Regret(str(workload), "default", "a", "b", *times, 20 + processes.count, {})

    monkeypatch.setattr(neighbours, "measured", measured)
    out = tmp_path / "out.jsonl"
    arguments = ["--rounds", "5", "--workers", "3", "--out", str(out), str(SMALL), str(WORKLOAD)]
    monkeypatch.setattr(sys, "argv", ["neighbours", *arguments])
    neighbours.main()
    (line,) = out.read_text().splitlines()
    row = json.loads(line)
    assert (row["workload"], row["chosen_us"], row["timed"]) == (str(WORKLOAD), 15.0, 23)
    said = capsys.readouterr()
    assert f"{SMALL}: left out: the choice is wrong" in said.err
    assert "Regret: median 50.0%" in said.out


def test_the_table() -> None:
    one = Regret("fwd_b1", "nearest: x", "a", "b", 102.0, 100.0, 9, {})
    two = Regret("fwd_b2", "default", "a", "a", 50.0, 50.0, 9, {})
    assert neighbours.table([one, two]) == (
        "| workload | choice | us | fastest | regret |\n"
        "| --- | --- | ---: | ---: | ---: |\n"
        "| b1 | nearest: x | 102.0 | 100.0 | 2.0% |\n"
        "| b2 | default | 50.0 | 50.0 | 0.0% |\n\n"
        "Regret: median 1.0%, largest 2.0%.\n"
    )
