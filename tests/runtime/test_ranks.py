"""tunefa/runtime/ranks.py: two ranks on the CPU run the records of the first one."""

from __future__ import annotations

from pathlib import Path

import pytest

import tunefa
from tests.support import agreeing_ranks
from tests.support.made_here import made_here
from tunefa.errors import TunefaError
from tunefa.runtime import process
from tunefa.runtime.process import Runtime
from tunefa.runtime.ranks import _check
from tunefa.store import results as store

FIRST, SECOND = made_here("fwd_q4096"), made_here("fwd_q8192")
NONE = ["", ""]


def test_ranks_with_other_stores_agree_on_those_of_the_first() -> None:
    one, two = agreeing_ranks.run("cpu", [[FIRST.to_dict()], [SECOND.to_dict()]], NONE)
    assert one["before"] != two["before"] and one["error"] == two["error"] == ""
    assert one["before"] == one["shared"] == two["shared"] == one["after"] == two["after"]
    assert str(FIRST.workload) in one["own"] and one["own"] == two["own"]
    assert str(SECOND.workload) not in two["own"]


def test_ranks_with_other_lock_files_are_named(tmp_path: Path) -> None:
    files = [str(tmp_path / "a.lock.yaml"), str(tmp_path / "b.lock.yaml")]
    for path, record in zip(files, (FIRST, SECOND), strict=True):
        store.write(Path(path), [record])
    both = agreeing_ranks.run("cpu", [[], []], files)
    for each in both:  # every rank says it, and none waits for the other
        assert each["error"].startswith("rank 1 would run other configs than rank 0: lock file: ")
        assert each["error"].endswith("on every rank, and load the same files")
    same = agreeing_ranks.run("cpu", [[], []], [files[0], files[0]])
    assert [each["error"] for each in same] == ["", ""] and same[0]["after"] == same[1]["after"]
    assert same[0]["own"] == []


def test_without_a_group_it_says_what_to_do() -> None:
    with pytest.raises(TunefaError, match=r"call torch\.distributed\.init_process_group first"):
        tunefa.share_records()


def test_what_differs_is_named() -> None:
    own = {"records": "a", "my_kernel": "source 1", "other": "x", "more": "y"}
    _check([own, dict(own)])
    with pytest.raises(TunefaError, match="rank 2 would run other configs than rank 0: my_kernel: "
                       "source 2 there, source 1 on rank 0; install the same"):  # fmt: skip
        _check([own, own, {**own, "my_kernel": "source 2"}])
    with pytest.raises(TunefaError, match=r"records: none there, a on rank 0; .* and 1 more; inst"):
        _check([own, {}])


def test_records_that_are_shared_replace_all_others(fresh: Runtime) -> None:
    store.default_store().add(FIRST)
    assert [each.workload for each in process.current().planner.records.records()] == [
        FIRST.workload
    ]
    fresh.use_only([SECOND])
    assert [each.workload for each in fresh.planner.records.records()] == [SECOND.workload]
