"""The file with the workloads of a program."""

from __future__ import annotations

from pathlib import Path

import pytest

import tunefa
from tunefa.spec.workload import Workload
from tunefa.store.traced import Traced, merged, read

LONG, SHORT = Workload.parse("q4096"), Workload.parse("q64")


def some() -> Traced:
    found = Traced("NVIDIA H200")
    found.add(SHORT, 0.5)
    found.add(LONG, 1.0)
    found.add(LONG, 0.25, 3)
    found.add("attention with a mask", 0.125)
    return found


def test_what_was_written_is_read_with_the_heaviest_first(tmp_path: Path) -> None:
    path = tmp_path / "workloads.yaml"
    path.write_text(some().text())
    assert read(path) == some()
    assert read(path).heaviest == [LONG, SHORT]
    assert (read(path).workloads[LONG].seconds, read(path).workloads[LONG].count) == (1.25, 4)


def test_processes_add_up() -> None:
    whole = merged([Traced(), some(), some()])
    assert whole.device == "NVIDIA H200"
    assert whole.workloads[SHORT].count == 2 and whole.workloads[LONG].seconds == 2.5
    assert whole.other["attention with a mask"].count == 2


def test_people_need_to_write_little(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("workloads:\n- {workload: q64, weight: 2}\n- {workload: q64, weight: 1}\n")
    assert read(path).workloads[SHORT].seconds == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file is empty"),
        ("workloads: []", "has no workloads: trace a program"),
        ("workloads:\n- q64", "entry 1 of 'workloads' is 'q64': write {workload: ..., weight: "),
        ("workloads:\n- {workload: q64}", ":2: key 'weight' is missing: add it$"),
        ("workloads:\n- {workload: q64, wieght: 3}", ":2: key 'weight' .* 'wieght' is no key"),
        ("workloads:\n- {workload: q64, weight: -1}", ":2: 'weight' is -1: give seconds"),
        ("workloads:\n- {workload: x64, weight: 1}", ":2: workload 'x64'"),
        ("workloads:\n- {workload: q64, weight: 1, wieght: 2}", "wieght"),
        ("workload: []", "key 'workloads' is missing"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    with pytest.raises(tunefa.TunefaError, match=f"wrong.yaml.*{said}"):
        read(path)


def test_a_process_may_have_seen_none(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(Traced("cpu").text())
    assert read(path, empty=True).device == "cpu"
