from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixed_store import Fixed
from tests.support.sample_records import CONFIG, dated, measured, predicted
from tunefa.errors import TunefaError
from tunefa.spec.arch import Arch
from tunefa.spec.target import Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload
from tunefa.store.distances import distance
from tunefa.store.lookup import Choice, lookup
from tunefa.store.record import Record
from tunefa.store.results import Store

H200 = Target.named("h200")


@dataclass(frozen=True)
class Kernel:
    """Serves everything up to `max_head_dim`; refuses the values of BLOCK_M it is told to."""

    name: str = "attention_fwd_triton"
    max_head_dim: int = 256
    refused_block_m: frozenset[int] = field(default=frozenset())
    place: int = 0

    def priority(self, workload: Workload, arch: Arch) -> int:
        return self.place

    def why_not(self, workload: Workload, arch: Arch) -> str | None:
        return "head_dim" if workload.head_dim > self.max_head_dim else None

    def refusal(self, config: Config, workload: Workload, arch: Arch) -> str | None:
        return "BLOCK_M fits" if config["BLOCK_M"] in self.refused_block_m else None

    def default(self, workload: Workload, arch: Arch) -> dict[str, Any]:
        return {"BLOCK_M": 16}


def ask(
    records: Sequence[Record],
    workload: str = "fwd_q4096",
    target: Target = H200,
    kernels: Sequence[Kernel] = (Kernel(),),
) -> Choice:
    return lookup(Fixed(records), Workload.parse(workload), target, kernels)


EXACT = measured("fwd_q4096", median_us=900.0)
NEAREST = measured("fwd_q8192", median_us=1.0)
OTHER_EXACT = measured("fwd_q4096", device="NVIDIA H100 80GB HBM3", median_us=0.9)
OTHER_NEAREST = measured("fwd_q8192", device="NVIDIA H100 80GB HBM3", median_us=0.8)
PREDICTED_EXACT = predicted("fwd_q4096", median_us=0.7)
PREDICTED_NEAREST = predicted("fwd_q8192", median_us=0.6)
LADDER = [EXACT, OTHER_EXACT, NEAREST, OTHER_NEAREST, PREDICTED_EXACT, PREDICTED_NEAREST]


@pytest.mark.parametrize(
    ("best", "how"),
    [
        (0, "exact"),
        (1, "other-device"),
        (2, "nearest"),
        (3, "other-device"),
        (4, "predicted"),
        (5, "predicted"),
    ],
)
def test_the_most_trusted_record_wins_however_slow(best: int, how: str) -> None:
    choice = ask(LADDER[best:][::-1])
    assert (choice.record, choice.how) == (LADDER[best], how)
    assert choice.kernel == "attention_fwd_triton"
    assert choice.config == CONFIG


def test_kernels_have_a_priority_where_nothing_is_known() -> None:
    named = [Kernel("first_by_name", place=1), Kernel("preferred"), Kernel("third")]
    assert ask([], kernels=named).kernel == "preferred"


def test_without_a_record_the_first_kernel_that_serves_runs_its_default() -> None:
    small = Kernel("small", max_head_dim=64)
    choice = ask([], kernels=[small, Kernel("large"), Kernel("larger")])
    assert choice == Choice("large", {"BLOCK_M": 16}, "default", None)
    assert choice.why == "default: no result applies, so large runs with its default config"


def test_a_near_record_of_this_device_comes_before_an_exact_one_of_another() -> None:
    near, far = measured("fwd_q5000"), measured("fwd_q2048")  # 0.4 and 1.4 octaves
    assert ask([OTHER_EXACT, near]).record == near
    assert ask([OTHER_EXACT, far]).record == OTHER_EXACT


def test_a_device_with_other_figures_is_further_away() -> None:
    h20 = measured("fwd_q4096", device="NVIDIA H20")  # 78 SMs with an eighth of the rate
    assert ask([h20, NEAREST]).record == NEAREST
    assert ask([h20, measured("fwd_q16k")]).record == h20


@pytest.mark.parametrize("name", ["NVIDIA H999", "NVIDIA H200 MIG 1g.18gb"])
def test_a_device_without_known_figures_is_an_octave_away(name: str) -> None:
    unknown = measured("fwd_q4096", device=name)
    assert ask([unknown, measured("fwd_q8000_k4096")]).how == "nearest"
    assert ask([unknown, NEAREST]).record == unknown


@pytest.mark.parametrize("asked", ["bf16", "fp16"])
def test_bf16_and_fp16_share_their_records(asked: str) -> None:
    other = {"bf16": "fp16", "fp16": "bf16"}[asked]
    theirs, near = measured(f"fwd_q4096_{other}"), measured(f"fwd_q5000_{asked}")
    choice = ask([near, theirs], f"fwd_q4096_{asked}")
    assert (choice.record, choice.how, choice.octaves) == (theirs, "nearest", 0.0)
    assert choice.why == f"nearest: measured on NVIDIA H200 for {theirs.workload}"
    own = measured(f"fwd_q4096_{asked}", median_us=2000.0)
    assert ask([theirs, own], f"fwd_q4096_{asked}").record == own
    assert ask([predicted(f"fwd_q4096_{other}")], f"fwd_q4096_{asked}").how == "predicted"


def test_part_of_a_chip_is_another_device() -> None:
    part = replace(H200.device, name="NVIDIA H200 MIG 1g.18gb")
    assert ask([EXACT], target=replace(H200, device=part)).how == "other-device"


@pytest.mark.parametrize(
    "workload",
    [
        "fwd_q4096_e4m3",
        "fwd_q4096_d64",
        "fwd_q4096_d128_dv64",
        "fwd_q4096_full",
        "fwd_q4096_w512",
        "fwd_q4096_varlen",
    ],
)
def test_another_family_s_records_do_not_apply(workload: str) -> None:
    assert ask([measured(workload), predicted(workload)]).how == "default"
    assert ask([measured("fwd_q4096")], workload).how == "default"


def test_another_arch_s_records_do_not_apply() -> None:
    assert ask([measured(arch="sm80"), predicted(arch="sm80")]).how == "default"


def test_records_that_cannot_run_here_are_passed_over() -> None:
    unknown = measured(kernel="gone", median_us=1.0)
    refused = measured(config={**CONFIG, "BLOCK_M": 256}, median_us=2.0)
    not_serving = measured(kernel="small", median_us=3.0)
    kernels = [Kernel("small", max_head_dim=64), Kernel(refused_block_m=frozenset({256}))]
    choice = ask([unknown, refused, not_serving, EXACT], kernels=kernels)
    assert choice.record == EXACT


def test_no_kernel_serves() -> None:
    with pytest.raises(TunefaError, match=r"no kernel serves fwd_.* on sm90 \(small: head_dim\)"):
        ask([EXACT], kernels=[Kernel("small", max_head_dim=64)])
    with pytest.raises(TunefaError, match="no kernels"):
        ask([EXACT], kernels=[])


def test_nearest_is_by_ratio_not_by_difference() -> None:
    below, above = measured("fwd_q1024"), measured("fwd_q8192")
    assert ask([below, above], "fwd_q2048").record == below  # 1 octave down, 2 up
    assert ask([below, above], "fwd_q4096").record == above


def test_a_workload_far_away_says_nothing() -> None:
    near, far = measured("fwd_q16k"), measured("fwd_q20k")
    assert ask([near], "fwd_q4096").how == "nearest"  # two octaves on both axes
    assert ask([far], "fwd_q4096").how == "default"
    assert ask([far, near], "fwd_q4096").record == near


def test_lengths_weigh_more_than_batch_and_heads() -> None:
    more_batch, longer = measured("fwd_b2_q4096"), measured("fwd_q8192_k4096")
    assert ask([longer, more_batch]).record == more_batch


def test_ties_go_to_the_faster_then_the_newer_then_the_earlier_root() -> None:
    slow_below = measured("fwd_q1024", median_us=20.0)
    fast_above = measured("fwd_q9216", median_us=10.0)
    assert ask([slow_below, fast_above], "fwd_q3072").record == fast_above
    old = measured(provenance=dated("2025-01-01"))
    new = measured(provenance=dated("2025-01-02"))
    assert ask([old, new]).record is new
    first, second = measured(), measured()
    assert ask([first, second]).record is first


def test_windows_are_a_family_of_their_own() -> None:
    narrow, wide = measured("fwd_q8192_w512"), measured("fwd_q8192_w2048")
    assert ask([wide, narrow, NEAREST], "fwd_q8192_w512").how == "exact"
    assert ask([wide, narrow, NEAREST], "fwd_q8192_w700").record == narrow
    assert ask([wide, narrow], "fwd_q8192").record is None
    assert ask([wide, NEAREST], "fwd_q8192_w8192").record == NEAREST  # a window of all keys is none


def test_keys_beyond_the_diagonal_and_soft_caps_are_families_of_their_own() -> None:
    narrow, wide = measured("fwd_q8192_w512_a512"), measured("fwd_q8192_w512_a2048")
    capped = measured("fwd_q8192_softcap")
    assert ask([wide, narrow, NEAREST], "fwd_q8192_w512_a600").record == narrow
    assert ask([wide, narrow], "fwd_q8192_full").record is None
    assert ask([wide, narrow], "fwd_q8192_w512").record is None
    assert ask([capped], "fwd_q8192").record is None
    assert ask([capped, NEAREST], "fwd_q8192_softcap").record == capped


def test_eager_measurements_come_before_graphs_where_they_are_as_near() -> None:
    graph, eager = measured(median_us=1.0), measured(median_us=9.0, mode="eager")
    assert ask([graph, eager]).record is eager
    below, above = measured("fwd_q2048_k4096"), measured("fwd_q8192_k4096", mode="eager")
    assert ask([below, above], "fwd_q4096").record is above
    near = measured("fwd_q4096", median_us=9.0)
    assert ask([near, above], "fwd_q4096").record is near


def test_what_was_superseded_does_not_serve_among_equally_far_ones() -> None:
    stale = measured("fwd_q2048_k4096", median_us=1.0, provenance=dated("2025-01-01"))
    today = replace(stale, median_us=9.0, provenance=dated("2026-01-01"))
    other = measured("fwd_q8192_k4096", median_us=5.0)
    assert ask([stale, today, other], "fwd_q4096").record is other


def test_the_same_workload_beats_another_at_distance_0() -> None:
    same = measured("fwd_b2_h32_kv8_q4096", median_us=900.0)
    alike = measured("fwd_b4_h16_kv4_q4096", median_us=1.0)
    assert distance(same.workload, alike.workload) == 0
    assert ask([alike, same], "fwd_b2_h32_kv8_q4096").record == same
    assert ask([alike], "fwd_b2_h32_kv8_q4096").how == "nearest"


def test_why_says_what_was_found_and_how_far_off() -> None:
    exact = "exact: measured on NVIDIA H200 for fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal"
    assert ask(LADDER).why == exact
    assert ask([measured("fwd_b2_q4096")]).why == (
        "nearest: measured on NVIDIA H200 for fwd_b2_h32_kv8_q4096_k4096_d128_bf16_causal, "
        "0.5 octaves (factors of two) away"
    )
    assert ask([PREDICTED_NEAREST]).why == (
        "predicted: the cost model's choice on sm90 for "
        "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal, 1.4 octaves (factors of two) away"
    )


def test_no_distance_is_not_a_distance() -> None:
    other = ask([OTHER_EXACT]).why
    assert other.startswith("other-device: ") and "octaves" not in other


@pytest.mark.parametrize(
    ("record", "is_said"),
    [(EXACT, True), (NEAREST, True), (OTHER_EXACT, False), (PREDICTED_EXACT, False)],
)
def test_why_ends_with_the_store_s_remark_on_a_record_of_this_device(
    record: Record, is_said: bool
) -> None:
    class Remarking(Fixed):
        def remark(self, record: Record) -> str:
            return "but"

    choice = lookup(Remarking([record]), EXACT.workload, H200, [Kernel()])
    assert choice.why.endswith("; but") == is_said


def test_the_choice_does_not_share_its_config_with_the_record() -> None:
    ask([EXACT]).config["BLOCK_M"] = 1
    assert EXACT.config["BLOCK_M"] == 128


def test_works_on_a_store_on_disk(tmp_path: Path) -> None:
    store = Store([tmp_path])
    store.add(EXACT)
    choice = lookup(store, EXACT.workload, H200, [Kernel()])
    assert (choice.record, choice.how) == (EXACT, "exact")
