"""tunefa/search/run.py: Ctrl-C, spaces with nothing in them, disks that cannot be written.

The objective is a fake here; tests/search/test_run_whole.py has the real one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from tests.support.fake_objective import (
    KERNEL,
    SM90,
    WORKLOAD,
    Fake,
    Seen,
    by_tile,
    request,
    user_store,
)
from tests.support.own_kernels import OwnKernels
from tests.support.sample_records import measured as measured_record
from tunefa.compile import languages
from tunefa.errors import TunefaError
from tunefa.measure import measured
from tunefa.measure.objective import Raced
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.spec.expr import Expr
from tunefa.spec.trial import Config, Trial
from tunefa.store import journal
from tunefa.store import results as store
from tunefa.store.results import Store


def test_a_space_whose_every_config_is_refused_says_why(fake: type[Fake]) -> None:
    rules = {
        "no long tiles": Expr("BLOCK_M < 64"),
        "no short tiles": Expr("BLOCK_M > 64"),
        "never asked": Expr("1 == 1"),
    }
    kernel = replace(KERNEL, space=replace(KERNEL.space, rules=rules))
    total = math.prod(len(p.values) for p in KERNEL.space.parameters)
    with pytest.raises(TunefaError) as caught:
        search.search(request(kernel), user_store())
    message = str(caught.value)
    assert f"every config for {WORKLOAD} on sm90 is refused" in message
    assert f"no long tiles ({total * 3 // 5})" in message
    assert f"no short tiles ({total * 2 // 5})" in message
    assert "never asked" not in message
    assert not journal.folder().exists(), "nothing was tried, so there is no journal"


def test_what_ran_ahead_of_the_last_trial_is_kept(fake: type[Fake]) -> None:
    default = KERNEL.default(WORKLOAD, SM90)
    last_ones = [
        Trial({**default, "BLOCK_M": tile}, "timeout", "it ran ahead") for tile in (16, 32)
    ]
    left = list(last_ones)
    fake.settle = lambda self: left.pop(0) if left else None  # type: ignore[method-assign]
    result = search.search(request(budget=Budget(trials=5), strategy="random"), user_store())
    for last in last_ones:
        assert last in [each.trial for each in result.finished]
        assert last in [trial for _, trial in journal.read(result.journal)]


def test_ctrl_c_keeps_the_best_so_far(fake: type[Fake]) -> None:
    fake.judge = staticmethod(by_tile)
    result = search.search(request(budget=Budget(trials=50)), user_store(), Seen(3))
    assert result.interrupted and len(result.finished) == 3
    assert result.record is not None and result.stored is not None
    assert result.record.median_us == min(f.trial.median_us or 0 for f in result.finished)
    assert store.read(result.stored) == [result.record]
    assert len({repr(t.config) for _, t in journal.read(result.journal)}) == 3


def test_ctrl_c_again_while_the_best_is_checked(fake: type[Fake]) -> None:
    seen = Seen(3, times=99)
    result = search.search(request(budget=Budget(trials=50)), user_store(), seen)
    assert result.interrupted and result.record is not None
    assert len(list(journal.read(result.journal))) >= 3


def test_ctrl_c_before_anything_is_done(fake: type[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Any, wait_s: float) -> Trial:
        raise KeyboardInterrupt

    monkeypatch.setattr(fake, "next", interrupt)
    result = search.search(request(), user_store())
    assert result.interrupted and result.record is None and result.finished == ()
    assert list(journal.read(result.journal)) == []


def test_ctrl_c_in_the_first_kernel_leaves_out_the_second(
    fake: type[Fake], own_kernels: OwnKernels
) -> None:
    first, second = own_kernels.add_attention("stopped"), own_kernels.add_attention("not_begun")
    result = search.search(request(first, second), user_store(), Seen(2))
    assert result.interrupted and {f.kernel for f in result.finished} == {"stopped"}
    assert result.record is not None and result.record.kernel == "stopped"


class Measuring(Fake):
    """Measures; Ctrl-C in the race of the kernels in `stopped`."""

    kind: Literal["measured", "predicted"] = "measured"
    us: ClassVar[dict[str, float]] = {"quick": 50.0}
    stopped: ClassVar[set[str]] = set()

    def next(self, wait_s: float = math.inf) -> Trial:
        config = self.pending.pop(0)
        return Trial(config, "ok", samples_us=(self.us.get(self.kernel.name, 100.0),), error=1e-3)

    def race(self, trials: Any, default: Config | None, until: float = math.inf) -> Raced:
        if self.kernel.name in self.stopped:
            raise KeyboardInterrupt
        return Raced(list(trials), next(iter(trials)), {"decision": "raced"})


@pytest.mark.parametrize("stopped", ["quick", "slow"])
def test_a_kernel_whose_race_was_interrupted_is_not_left_out(
    stopped: str, own_kernels: OwnKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it pass for one that raced."""
    monkeypatch.setattr(measured, "gpu_objective", lambda mode: Measuring)
    monkeypatch.setattr(Measuring, "stopped", {stopped})
    slow, quick = own_kernels.add_attention("slow"), own_kernels.add_attention("quick")
    ordered = (quick, slow) if stopped == "slow" else (slow, quick)
    result = search.search(request(*ordered, measured=True, budget=Budget(trials=8)), user_store())
    assert result.interrupted and result.record is not None
    assert result.record.kernel == "quick" and result.record.median_us == 50.0
    expected = "the race was lost: interrupted" if stopped == "quick" else None
    assert result.record.not_certified == expected


def test_a_journal_that_cannot_be_written_ends_the_search_before_it_begins(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path / "file"))
    seen = Seen()
    with pytest.raises(TunefaError, match=r"journal .* cannot be written"):
        search.search(request(), user_store(), seen)
    assert seen.reports == []


def test_a_store_that_cannot_be_written_leaves_the_journal(
    fake: type[Fake], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TunefaError, match="cannot write"):
        search.search(request(), Store([tmp_path / "file" / "store"]))
    (path,) = journal.paths()
    assert len({repr(t.config) for _, t in journal.read(path)}) == 6


def test_a_better_record_of_another_search_stays(fake: type[Fake]) -> None:
    other = measured_record(str(WORKLOAD), config=KERNEL.default(WORKLOAD, SM90))
    user_store().add(other)
    result = search.search(request(), user_store())
    assert result.record is not None
    assert sorted(r.objective for r in user_store().records()) == ["measured", "predicted"]
    assert user_store().best()[-1].objective == "measured" or len(user_store().best()) == 2


def test_where_the_interpreter_does_not_run_nothing_is_predicted(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = languages.load("triton")
    monkeypatch.setattr(triton, "why_no_interpreter", lambda: "numpy is too new")
    with pytest.raises(TunefaError, match="could not be checked: numpy is too new"):
        search.search(request(), user_store())
    assert journal.paths() == []
    # A kernel in a language without an interpreter needs none.
    gluon = replace(KERNEL, space=replace(KERNEL.space, language="gluon"))
    assert search.search(request(gluon), user_store()).record is not None
