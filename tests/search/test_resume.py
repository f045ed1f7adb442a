"""tunefa/search/resume.py: going on with a journal, whatever ended the search that wrote it.

The objective is a fake here; tests/cli/test_search_resume.py kills a search that is under way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_objective import KERNEL, Fake, Seen, by_tile, request, user_store
from tests.support.own_kernels import OwnKernels
from tunefa.costmodel import version
from tunefa.errors import TunefaError
from tunefa.measure import measured
from tunefa.search import resume, strategies
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.search.request import Request, Result
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.trial import MODES, Config, Mode, Trial, identity
from tunefa.spec.workload import Workload
from tunefa.store import journal


def searched(asked: Request, interrupt_at: int = 10**9) -> Result:
    return search.search(asked, user_store(), Seen(interrupt_at))


def continued(asked: Request, path: Path, trials: int) -> Request:
    return replace(asked, resume=path, budget=Budget(trials=trials))


def counting(fake: type[Fake]) -> list[Config]:
    """All configs that are tried from now on."""
    tried: list[Config] = []

    def judge(config: Config) -> float:
        tried.append(config)
        return by_tile(config)

    fake.judge = staticmethod(judge)
    return tried


def change_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    first, *rest = path.read_text().splitlines(keepends=True)
    header = json.loads(first)
    del header["checksum"]
    change(header)
    path.write_text(json.dumps(header) + "\n" + "".join(rest))


@pytest.mark.parametrize("strategy", strategies.names())
def test_no_trial_is_repeated_and_all_count(fake: type[Fake], strategy: str) -> None:
    tried = counting(fake)
    asked = request(budget=Budget(trials=24), strategy=strategy)
    first = searched(asked, interrupt_at=12)
    assert first.interrupted and len(first.finished) == 12
    before = {identity(f.trial.config) for f in first.finished}
    tried.clear()
    second = searched(continued(asked, first.journal, 24))
    assert second.journal == first.journal and journal.paths() == [first.journal]
    # Without a device, `auto` tries only what could change the decision: here nothing more.
    more = 0 if strategy == "auto" else 12
    assert len(tried) == more and not {identity(config) for config in tried} & before
    held = {identity(trial.config) for _, trial in journal.read(second.journal)}
    assert len(held) == 12 + more == len(second.finished)
    assert second.record is not None and second.record.provenance["trials"] == 12 + more
    best = min(f.trial.median_us or 0 for f in second.finished)
    assert second.record.median_us == best


def test_a_used_up_budget_races_what_there_is(fake: type[Fake]) -> None:
    tried = counting(fake)
    first = searched(request())
    tried.clear()
    second = searched(continued(request(), first.journal, 6))
    assert tried == [] and second.record is not None and first.record is not None
    assert second.record.config == first.record.config


def test_the_strategy_learns_of_earlier_trials() -> None:
    class Told:
        def __init__(self) -> None:
            self.trials: list[Trial] = []
            self.left = [{"A": n} for n in range(5)]

        def ask(self, compiled: bool = False) -> Config | None:
            return self.left.pop(0) if self.left else None

        def tell(self, trial: Trial) -> None:
            self.trials.append(trial)

    strategy: Any = Told()
    earlier = [Trial({"A": 0}, "ok", predicted_us=1.0), Trial({"A": 3}, "crashed", "because")]
    going_on = resume.Continued(strategy, earlier)
    assert strategy.trials == earlier
    assert [going_on.ask() for _ in range(4)] == [{"A": 1}, {"A": 2}, {"A": 4}, None]
    going_on.tell(Trial({"A": 1}, "ok"))
    assert len(strategy.trials) == 3


def test_two_kernels_still_share_a_larger_budget(fake: type[Fake], own_kernels: OwnKernels) -> None:
    asked = request(own_kernels.add_attention("goes_on_a"), own_kernels.add_attention("goes_on_b"))
    first = searched(replace(asked, budget=Budget(trials=10)))
    second = searched(continued(asked, first.journal, 20))
    names = [f.kernel for f in second.finished]
    assert (names.count("goes_on_a"), names.count("goes_on_b")) == (10, 10)


def test_ctrl_c_while_going_on_keeps_the_other_kernels_trials(
    fake: type[Fake], own_kernels: OwnKernels
) -> None:
    asked = request(own_kernels.add_attention("kept_a"), own_kernels.add_attention("kept_b"))
    first = searched(asked)
    second = searched(continued(asked, first.journal, 20), interrupt_at=1)
    assert second.interrupted and len(second.finished) == 7
    assert {f.kernel for f in second.finished} == {"kept_a", "kept_b"}


def test_a_torn_last_line_is_cut_off_first(fake: type[Fake]) -> None:
    asked = request(budget=Budget(trials=10), strategy="random")
    first = searched(asked, interrupt_at=5)
    whole = first.journal.read_bytes()
    for torn in (whole + b'{"kernel": "att', whole[:-1], whole + bytes(64)):
        first.journal.write_bytes(torn)
        second = searched(continued(asked, first.journal, 10))
        assert len(second.finished) == 10
        assert first.journal.read_bytes().startswith(whole)
        assert len(list(journal.read(first.journal))) >= 10


def test_the_newest_of_the_same_is_found(fake: type[Fake]) -> None:
    asked = request()
    assert (
        "There is no journal of this workload, arch, device and kernels in "
        in resume.find(asked).message
    )
    searched(asked)
    newest = searched(asked).journal
    other = replace(asked, workload=Workload.parse("q2048_h8_kv2_d64"))
    searched(other)
    (journal.folder() / "99991231T000000-broken.jsonl").write_text("nonsense\nmore\n")
    (journal.folder() / "99991231T000001-torn.jsonl").write_text('{"tunefa_jour')
    found = resume.find(replace(asked, seed=5, strategy="grid"))
    assert found.path == newest
    assert found.message == f"Continuing {newest}: 6 trials will not be repeated."


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda h: h.update(workload="another"), "its workload is another, not fwd_b1_h8_kv2"),
        (lambda h: h.update(arch="sm80"), "its arch is sm80, not sm90"),
        (lambda h: h.update(objective="measured"), "its objective is measured, not predicted"),
        (lambda h: h.update(mode="graph"), "its mode is graph, not None"),
        (lambda h: h["provenance"].update(more={}), f"its kernels are {KERNEL.name}, more, not"),
        (lambda h: h.pop("provenance"), "its kernels are none, not attention"),
        (
            lambda h: h["provenance"][KERNEL.name].update(source_hash="0123"),
            f"{KERNEL.name} has changed: its source_hash was 0123 and is {KERNEL.source_hash}",
        ),
        (lambda h: h["provenance"][KERNEL.name].update(triton="1.0"), "its triton was 1.0 and is"),
    ],
)
def test_a_journal_of_another_search_is_not_continued(
    fake: type[Fake], change: Callable[[dict[str, Any]], None], why: str
) -> None:
    path = searched(request()).journal
    change_header(path, change)
    found = resume.find(request(), path)
    assert found.path is None
    assert found.message.startswith(f"{path} is not continued, and its trials are not used: ")
    assert why in found.message and found.message.count("\n") == 0
    with pytest.raises(TunefaError, match=f"^{path} cannot be continued: "):
        searched(continued(request(), path, 9))


@pytest.fixture
def on_device(fake: type[Fake], monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    """The fake in place of the objective that measures, in all modes."""
    fake.kind = "measured"
    monkeypatch.setattr(measured, "gpu_objective", lambda mode: fake)
    return fake


@pytest.mark.parametrize("mode", MODES)
def test_a_measured_search_goes_on_in_its_mode_only(on_device: type[Fake], mode: Mode) -> None:
    tried = counting(on_device)
    asked = request(measured=True, mode=mode, budget=Budget(trials=20))
    first = searched(asked, interrupt_at=8)
    other = replace(asked, mode="graph" if mode == "eager" else "eager")
    assert "a new search starts" in resume.find(other).message
    with pytest.raises(TunefaError, match=f"its mode is {mode}, not {other.mode}"):
        searched(continued(other, first.journal, 20))
    before = {identity(config) for config in tried[:8]}
    tried.clear()
    found = resume.find(asked)
    second = searched(continued(asked, found.path or Path(), 20))
    assert len(tried) == 12 and not {identity(config) for config in tried} & before
    assert second.record is not None and second.record.mode == mode
    assert second.record.device == "NVIDIA H200" and len(second.finished) == 20


def test_a_measured_journal_from_before_there_were_modes_is_of_graphs(
    on_device: type[Fake],
) -> None:
    asked = request(measured=True, mode="graph")
    path = searched(asked).journal
    change_header(path, lambda h: h.pop("mode"))
    assert resume.find(asked).path == path
    eager = resume.find(replace(asked, mode="eager"))
    assert eager.path is None and "and kernels in eager mode in " in eager.message


def test_a_predicted_journal_from_before_there_were_modes_goes_on(fake: type[Fake]) -> None:
    path = searched(request()).journal
    change_header(path, lambda h: h.pop("mode"))
    assert resume.find(request()).path == path


def test_a_changed_kernel_is_said_without_a_name_too(fake: type[Fake]) -> None:
    path = searched(request()).journal
    change_header(path, lambda h: h["provenance"][KERNEL.name].update(source_hash="0123"))
    found = resume.find(request())
    assert found.path is None and "source_hash was 0123" in found.message


def test_trials_of_an_older_model_of_time_are_not_continued(fake: type[Fake]) -> None:
    first = searched(request())

    def older(header: dict[str, Any]) -> None:
        del header["provenance"][KERNEL.name]["model"]

    change_header(first.journal, older)
    found = resume.find(request())
    assert found.path is None or found.path != first.journal
    assert "its model was None and is" in found.message


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (None, "new", "its learned was None and is new"),
        ("old", "new", "its learned was old and is new"),
        ("old", None, r"its times are from a learned model \(old\) that is not there now"),
    ],
)
def test_trials_of_another_learned_model_are_not_continued(
    fake: type[Fake],
    monkeypatch: pytest.MonkeyPatch,
    then: str | None,
    now: str | None,
    said: str,
) -> None:
    monkeypatch.setattr(version, "learned_id", lambda objective, arch: then)
    path = searched(request()).journal
    assert resume.find(request()).path == path
    monkeypatch.setattr(version, "learned_id", lambda objective, arch: now)
    found = resume.find(request())
    assert found.path is None and re.search(said, found.message)


def test_configs_that_the_rules_refuse_by_now_are_left_out(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = searched(request(strategy="grid")).journal
    case = request().case(KERNEL)
    assert len(resume.trials(path, case)) == 6
    assert resume.trials(path, request().case(kernels.load("attention_fwd_cuda_sm80"))) == []
    refused = case.feasible().configs[:2]
    monkeypatch.setattr(
        Case, "refusal", lambda self, config: "a new rule" if config in refused else None
    )
    assert len(resume.trials(path, case)) == 4


def test_a_journal_that_is_still_written(fake: type[Fake]) -> None:
    path = searched(request()).journal
    with (
        journal.Journal.reopened(path),
        pytest.raises(TunefaError, match=f"a search that still runs writes the journal {path}"),
    ):
        searched(continued(request(), path, 9))
    assert len(searched(continued(request(), path, 9)).finished) == 9
