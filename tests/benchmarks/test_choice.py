"""benchmarks/choice.py: the comparison of a family's choices with those that are made anew."""

from __future__ import annotations

from benchmarks import choice


def test_the_first_workloads_agree() -> None:
    found = choice.compare(8, 5)
    assert found.workloads >= 8 and found.same == found.workloads and found.worst == 1.0
    assert len(found.quick_us) == len(found.anew_us) == found.workloads


def test_there_are_families_of_all_records() -> None:
    texts = [str(each) for each in choice.families()]
    assert len(texts) > 50 and any("e4m3" in each for each in texts)
