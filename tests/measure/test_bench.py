"""tunefa/measure/bench.py: what a disturbed race may claim; the rest is in test_measured.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.fake_device import Device, InProcess, Unwatched
from tests.support.predicted_case import CASE, config, ok
from tunefa.costmodel.roofline import cache_us
from tunefa.measure import bench, racing
from tunefa.measure import measured as objectives
from tunefa.measure.measured import Measured
from tunefa.measure.objective import Raced
from tunefa.spec.target import Target
from tunefa.spec.trial import Trial
from tunefa.spec.workload import Workload


class Disturbed(Unwatched):
    """Another process is on the device in the first `times` races."""

    seen = 0
    times = 10**9

    def read(self) -> None:
        self.other_processes = int(type(self).seen < self.times)

    def __exit__(self, *_: object) -> None:
        type(self).seen += 1


@pytest.fixture
def disturbed(device: Device, monkeypatch: pytest.MonkeyPatch) -> type[Disturbed]:
    class Own(Disturbed):
        pass

    monkeypatch.setattr(racing, "Monitor", Own)
    return Own


FINALISTS = [ok(16, 8.0), ok(32, 4.0), ok(128, 1.0)]
COMPANY = "1 other process(es) on the device in 2 races"


def test_a_race_that_is_disturbed_twice_claims_nothing_and_keeps_the_default(
    measured: Measured, disturbed: type[Disturbed]
) -> None:
    found = measured.race(FINALISTS, config(32))
    assert found.winner is not None and found.winner.config == config(32)
    certificate = found.certificate
    assert certificate is not None and disturbed.seen == 2
    assert certificate["gain_over_default"] is None
    assert certificate["refused"] == COMPANY
    assert certificate["decision"] == f"the default is kept: {COMPANY}"
    assert certificate["runner_up"] == {"config": config(128)}


def test_without_a_default_the_leader_of_a_disturbed_race_is_not_certified(
    measured: Measured, disturbed: type[Disturbed]
) -> None:
    found = measured.race(FINALISTS, None)
    assert found.winner is not None and found.winner.config == config(128)
    assert found.certificate is not None and found.certificate["refused"] == COMPANY
    assert "not certified" in found.certificate["decision"]


def test_a_disturbance_that_ends_costs_one_race(
    measured: Measured, disturbed: type[Disturbed]
) -> None:
    disturbed.times = 1
    found = measured.race(FINALISTS, config(16))
    assert found.certificate is not None and "refused" not in found.certificate
    assert found.winner is not None and found.winner.config == config(128) and disturbed.seen == 2


def test_there_is_no_second_race_without_time(
    measured: Measured, disturbed: type[Disturbed]
) -> None:
    found = measured.race(FINALISTS, config(16), until=0.0)
    assert found.certificate is not None and disturbed.seen == 1
    assert found.certificate["refused"].endswith("on the device in the race")


def test_winners_of_two_kernels_race_each_other(measured: Measured) -> None:
    for own, rival, best in ((16, 128, "attention_fwd_triton"), (128, 16, "fake")):
        found = measured.race_kernels(ok(own, 1.0), [("attention_fwd_triton", ok(rival, 1.0))])
        assert isinstance(found, bench.KernelRaceResult) and found.kernel == best
        certificate = found.certificate
        assert certificate["decision"] == "the fastest of 2" and "refused" not in certificate
        [(loser, slower)] = certificate["slower_by"].items()
        assert loser != best and slower["estimate"] == pytest.approx(7.0)  # 8 us against 1
        assert found.race.median_us(0) == (8.0 if own == 16 else 1.0)


def test_a_disturbed_race_between_kernels_claims_nothing(
    measured: Measured, disturbed: type[Disturbed]
) -> None:
    found = measured.race_kernels(ok(16, 1.0), [("attention_fwd_triton", ok(128, 1.0))])
    assert isinstance(found, bench.KernelRaceResult) and disturbed.seen == 2
    assert found.certificate["refused"] == COMPANY and "slower_by" not in found.certificate


def test_a_default_that_was_never_compiled_races_and_gets_its_resources(
    measured: Measured,
) -> None:
    unseen = Trial(config(128), "ok")
    found = measured.race([ok(16, 8.0), unseen], config(128))
    assert found.winner is not None and found.winner.config == config(128)
    assert found.winner.resources is not None and found.winner.median_us


def test_races_with_times_that_cannot_be_claim_nothing(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader takes 1 us on the fake device."""
    rivals = [("attention_fwd_triton", ok(128, 1.0))]
    for least_us, refused in ((1.2, False), (1.3, True)):
        monkeypatch.setattr(objectives, "cache_us", lambda *_, least_us=least_us: least_us)
        found = measured.race(FINALISTS, config(32))
        kernels = measured.race_kernels(ok(16, 1.0), rivals)
        assert found.winner is not None and found.certificate is not None
        assert isinstance(kernels, bench.KernelRaceResult)
        assert found.winner.config == config(32 if refused else 128)
        why = "a median of 1.0 us, which cannot be, as the memory alone needs 1.3 us, in 2 races"
        for certificate in (found.certificate, kernels.certificate):
            assert certificate.get("refused") == (why if refused else None)
        assert refused is (found.certificate["decision"] == f"the default is kept: {why}")


def test_a_race_over_a_cache_knows_the_memory_of_its_device(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bench's process knows the arch alone, whose default has a slower memory."""
    over_cache = Workload.parse("decode_b16_h32_kv8_q1_k8192_d128_bf16_causal")
    told: dict[str, float] = {}

    def called(self: Measured, method: str, arguments: tuple[Any, ...], limit_s: float) -> Raced:
        told[method] = arguments[-1]
        return Raced([])

    monkeypatch.setattr(Measured, "_call", called)
    for name in ("h200", "h100"):
        target = Target.named(name)
        objective = InProcess(replace(CASE, workload=over_cache, target=target), 1)
        with objective:
            objective.race([], None)
            objective.race_kernels(ok(16, 1.0), [])
        assert told == dict.fromkeys(("race", "race_kernels"), cache_us(over_cache, target))
