"""tunefa/search/verify.py: what becomes of stored winners, on a device that is a table of times."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.own_kernels import OwnKernels
from tests.support.sample_records import measured
from tunefa.compile import provenance
from tunefa.compile.pool import Rank
from tunefa.compile.serving import Installed, Serving, UsableStore
from tunefa.measure.objective import Raced
from tunefa.measure.racing import without_race
from tunefa.search import verify
from tunefa.search.budget import Budget
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import MODES, Config, Mode, Outcome, Resources, Trial
from tunefa.spec.workload import Workload
from tunefa.store.record import Record
from tunefa.store.results import Store

TARGET = Target.named("h200")
H200 = TARGET.device
KERNEL = kernels.load("attention_fwd_triton")
WORKLOAD = Workload.parse("q8192_d128_bf16_causal")
CASE = Case(KERNEL, WORKLOAD, TARGET)
DEFAULT = CASE.default()
STORED = {**DEFAULT, "L2_SECTION_HEADS": 16}
SECOND = {**DEFAULT, "L2_SECTION_HEADS": 4}


class Device:
    """Races by table: L2_SECTION_HEADS -> us, or an outcome. The noise floor is 1 %."""

    kind = "measured"
    width = 3

    def __init__(self, us: dict[int, float | Outcome], **claims: Any) -> None:
        self.us = us
        self.claims = claims
        self.asked: list[tuple[Any, ...]] = []
        self.pending: list[Config] = []

    def __call__(self, *asked: Any) -> Any:
        """Made for a mode, then for a case and a number of workers."""
        self.asked.append(asked)
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        self.pending.insert(0, config)  # comes back in another order

    def is_compiled(self) -> bool:
        return True

    def next(self, wait_s: float = 0.0) -> Trial:
        config = self.pending.pop(0)
        says: Any = self.us[config["L2_SECTION_HEADS"]]
        if isinstance(says, str):
            outcome: Any = says
            return Trial(config, outcome, "because")
        return Trial(config, "ok", resources=Resources(1, 1, 0, 0), samples_us=(says,), error=1e-3)

    def race(self, trials: Any, default: Config | None, until: float) -> Raced:
        best = min(trials, key=lambda trial: trial.median_us)
        certificate = {
            "noise_floor": 0.01,
            "gain_over_default": None,
            "racers": len(trials),
            **self.claims,
        }
        return Raced(list(trials), best, certificate)


def record(**parts: Any) -> Record:
    certificate = {"runner_up": {"config": SECOND}}
    return replace(
        measured(device=H200.name),
        workload=WORKLOAD,
        config=STORED,
        certificate=certificate,
        **parts,
    )


def only(device: Device, of: Record | None = None) -> verify.Verified:
    """The finding for one record."""
    (found,) = verify.verify([of or record()], TARGET, workers=1, objective=device)
    return found


def verified(us: dict[int, float | Outcome], of: Record | None = None) -> verify.Verified:
    return only(Device(us), of)


def test_a_winner_that_still_wins_is_kept() -> None:
    same = replace(record(), provenance=provenance.of(KERNEL))
    found = verified({16: 100.0, 1: 106.0, 4: 101.0}, same)
    assert (found.finding, found.instead, found.regressed) == ("kept", None, False)


def test_one_from_before_an_upgrade_that_still_wins_is_written_anew(tmp_path: Path) -> None:
    found = verified({16: 100.0, 1: 106.0, 4: 101.0})
    assert found.finding == "kept" and found.drift and not found.regressed
    assert found.instead is not None and found.instead.config == STORED
    assert provenance.drift(found.instead, provenance.of(KERNEL)) == []
    store = Store([tmp_path])
    for each in (record(), found.instead):
        store.add(each)
    assert store.best() == [found.instead]


def test_a_loss_within_the_noise_floor_is_none() -> None:
    found = verified({16: 100.9, 1: 106.0, 4: 100.0})
    assert found.finding == "kept" and found.instead is not None
    certificate = found.instead.certificate
    assert found.instead.config == STORED and certificate is not None
    assert certificate["gain_over_default"] is None
    assert certificate["runner_up"] == {"config": SECOND}


def test_a_disturbed_race_decides_nothing() -> None:
    device = Device({16: 120.0, 1: 100.0, 4: 110.0}, refused="power brake in 2 races")
    found = only(device)
    assert (found.finding, found.instead, found.regressed) == ("undecided", None, False)
    assert found.why == "not certified: power brake in 2 races"


def test_a_race_that_is_lost_decides_nothing() -> None:
    class Losing(Device):
        def race(self, trials: Any, default: Config | None, until: float) -> Raced:
            return without_race(list(trials), "the process died with exit code -9")

    losing = Losing({16: 120.0, 1: 100.0, 4: 110.0})
    found = only(losing)
    assert (found.finding, found.instead) == ("undecided", None)
    assert "the race was lost: the process died" in found.why


@pytest.mark.parametrize("mode", MODES)
def test_a_record_races_in_its_own_mode(mode: Mode) -> None:
    device = Device({16: 120.0, 1: 100.0, 4: 110.0})
    found = only(device, replace(record(), mode=mode))
    assert device.asked[0] == (mode,)
    assert found.instead is not None and found.instead.mode == mode


@pytest.mark.parametrize(("us", "winner"), [({16: 120.0, 1: 100.0, 4: 110.0}, DEFAULT),
                                            ({16: 120.0, 1: 115.0, 4: 110.0}, SECOND)])  # fmt: skip
def test_a_loser_gives_way(us: dict[int, float | Outcome], winner: Config) -> None:
    found = verified(us)
    assert found.finding == "swapped" and found.regressed
    assert found.instead is not None
    assert found.instead.config == winner and found.instead.device == H200.name
    assert found.instead.provenance["source_hash"] == KERNEL.source_hash
    assert "slower than another config" in found.why


@pytest.mark.parametrize("outcome", ["wrong", "crashed", "compile_failed", "unstable"])
def test_one_that_fails_is_flagged(outcome: Outcome) -> None:
    found = verified({16: outcome, 1: 100.0, 4: 100.0})
    assert found.finding == "failed" and found.why == f"{outcome}: because" and found.regressed


@pytest.mark.parametrize("outcome", ["wrong", "crashed", "compile_failed", "timeout"])
def test_one_that_does_not_work_no_longer_serves(outcome: Outcome, tmp_path: Path) -> None:
    shipped, user = Store([tmp_path / "shipped"]), Store([tmp_path / "user", tmp_path / "shipped"])
    shipped.add(replace(record(), provenance={**provenance.of(KERNEL), "triton": "3.6.0"}))
    (old,) = UsableStore(user, Installed()).records()
    found = verified({16: outcome, 1: 100.0, 4: 100.0}, old)
    if outcome == "timeout":  # the machine may have been busy
        assert found.instead is None
        return
    assert found.instead is not None
    user.add(found.instead)
    assert UsableStore(user, Installed()).records() == []
    (noted,) = user.records()
    why = f"found not to work with these compilers: {outcome}: because"
    assert Installed().serving(noted) == Serving("refused", why)
    mended = verified({16: 100.0, 1: 106.0, 4: 101.0}, noted).instead
    assert mended is not None and Installed().serving(mended).state == "confirmed"


def test_one_that_the_rules_refuse_today_is_flagged_without_a_run() -> None:
    config = {**STORED, "BLOCK_M": 7}
    found = verified({}, replace(record(), config=config))
    assert found.finding == "failed" and "BLOCK_M=7 is not in the space" in found.why


def test_a_workload_that_is_no_longer_served_is_flagged_without_a_run() -> None:
    found = verified({}, replace(record(), workload=replace(WORKLOAD, window_left=127)))
    assert found.finding == "failed" and f"{KERNEL.name} does not serve it: " in found.why


def test_drift_names_what_changed() -> None:
    now = provenance.of(KERNEL)
    same = replace(record(), provenance={**now})
    assert provenance.drift(same, now) == []
    changed = {**now, "triton": "3.5.0", "source_hash": "0" * 16, "torch": "1.0"}
    assert provenance.drift(replace(same, provenance=changed), now) == [
        "the source of attention_fwd_triton changed",
        f"triton 3.5.0 -> {now['triton']}",
    ]


def test_the_newest_record_of_a_kernel_supersedes_a_faster_older_one(tmp_path: Path) -> None:
    store = Store([tmp_path])
    old = replace(record(), median_us=90.0)
    found = verified({16: 120.0, 1: 100.0, 4: 110.0}, old)
    assert found.instead is not None
    store.add(old)
    store.add(found.instead)
    assert len(store.records()) == 2
    assert store.best() == [found.instead]


def with_lead(workload: str, low: float, **parts: Any) -> Record:
    """A record of another workload, with its lead over the runner-up."""
    certificate = {"runner_up": {"config": SECOND, "slower_by": {"low": low}}}
    made = replace(record(**parts), workload=Workload.parse(workload), certificate=certificate)
    return replace(made, provenance=made.provenance or provenance.of(KERNEL))


def test_the_records_most_in_doubt_come_first() -> None:
    now = provenance.of(KERNEL)
    sure = with_lead("q8192_d128_bf16_causal", 0.05, provenance=now)
    close = with_lead("q4096_d128_bf16_causal", 0.01, provenance=now)
    old = with_lead("q2048_d128_bf16_causal", 0.09, provenance={**now, "triton": "3.5.0"})
    other = with_lead("q1024_d128_bf16_causal", 0.09, provenance={**now, "source_hash": "0" * 16})
    assert verify.most_in_doubt([sure, close, old, other]) == [other, old, close, sure]


def test_a_budget_of_records_takes_those_most_in_doubt() -> None:
    now = provenance.of(KERNEL)
    sure = with_lead("q8192_d128_bf16_causal", 0.05, provenance=now)
    close = with_lead("q4096_d128_bf16_causal", 0.01, provenance=now)
    device = Device({16: 100.0, 1: 106.0, 4: 101.0})
    found = verify.verify([sure, close], TARGET, Budget.parse("1"), 1, device)
    assert [each.record for each in found] == [close]


def test_a_budget_that_is_over_leaves_out_the_rest() -> None:
    class Slow(Device):
        def race(self, trials: Any, default: Config | None, until: float) -> Raced:
            time.sleep(max(0.0, until - time.monotonic()))
            return super().race(trials, default, until)

    records = [with_lead(f"q{n}_d128_bf16_causal", 0.05) for n in (1024, 2048)]
    device = Slow({16: 100.0, 1: 106.0, 4: 101.0})
    found = verify.verify(records, TARGET, Budget.parse("0.2s"), 1, device)
    assert len(list(found)) == 1


def test_a_record_that_is_compiled_does_not_wait_for_one_that_is_not() -> None:
    class Compiling(Device):
        def is_compiled(self) -> bool:
            return len(self.pending) < 3  # the first has three configs, the second one more

    us: dict[int, float | Outcome] = {16: 100.0, 1: 106.0, 4: 101.0}
    devices: Any = iter([Compiling(us), Device(us)])
    first = with_lead("q1024_d128_bf16_causal", 0.1)
    second = replace(with_lead("q2048_d128_bf16_causal", 0.2), config={**STORED, "num_stages": 4})
    made = verify.verify([first, second], TARGET, None, 1, lambda _: lambda *_: next(devices))
    assert [each.record for each in made] == [second, first]


def test_all_records_share_the_processes() -> None:
    records = [with_lead(f"q{n}_d128_bf16_causal", 0.05) for n in (1024, 2048)]
    device = Device({16: 100.0, 1: 106.0, 4: 101.0})
    assert len(list(verify.verify(records, TARGET, workers=1, objective=device))) == 2
    (_, _, *first), (_, _, *second) = [asked for asked in device.asked if len(asked) == 4]
    assert first == second and None not in first


def test_a_kernel_that_is_broken_fails_its_records_only(own_kernels: OwnKernels) -> None:
    class Even(Device):
        def next(self, wait_s: float = 0.0) -> Trial:
            resources = Resources(1, 1, 0, 0)
            config = self.pending.pop(0)
            return Trial(config, "ok", resources=resources, samples_us=(100.0,), error=1e-3)

    own_kernels.add_attention("sound")
    own_kernels.add_broken("broken")
    records = [replace(record(), kernel=name) for name in ("broken", "sound")]
    found = {each.record.kernel: each for each in verify.verify(records, TARGET, None, 1, Even({}))}
    assert found["broken"].finding == "failed" and "broken.yaml" in found["broken"].why
    assert found["sound"].finding == "kept"
