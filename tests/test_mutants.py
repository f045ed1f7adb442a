"""scripts/mutants.py: which changes are tried, and what is said of those that survive."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.support.tree import TREE


def script() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("mutants", TREE / "scripts/mutants.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MUTANTS = script()


def session(path: Path) -> Path:
    """One as cosmic-ray writes it: 30 changes, and 10 of annotations."""
    with sqlite3.connect(path) as database:
        database.execute("create table mutation_specs (job_id text, operator_name text)")
        database.execute("create table work_items (job_id text)")
        for number in range(40):
            name = "core/NumberReplacer" if number < 30 else "core/ReplaceBinaryOperator_BitOr_Add"
            database.execute("insert into mutation_specs values (?, ?)", (f"{number:02}", name))
            database.execute("insert into work_items values (?)", (f"{number:02}",))
    return path


def left(path: Path) -> list[str]:
    with sqlite3.connect(path) as database:
        both = [[row[0] for row in database.execute(f"select job_id from {table} order by job_id")]
                for table in ("mutation_specs", "work_items")]  # fmt: skip
    assert both[0] == both[1]
    return both[0]


def test_annotations_are_not_changed_and_the_seed_says_what_is(tmp_path: Path) -> None:
    paths = [session(tmp_path / f"{number}.sqlite") for number in range(4)]
    assert MUTANTS.sampled(paths[0], None, 0) == 30
    assert left(paths[0]) == [f"{number:02}" for number in range(30)]
    for path, seed in zip(paths[1:], (1, 1, 2), strict=True):
        assert MUTANTS.sampled(path, 5, seed) == len(left(path)) == 5
    assert left(paths[1]) == left(paths[2]) != left(paths[3])


def test_what_survives_is_told_with_its_diff() -> None:
    lines = [json.dumps([{"job_id": "1"}, {"test_outcome": "killed", "diff": "- 1\n+ 2"}]),
             json.dumps([{"job_id": "2"}, {"test_outcome": "survived", "diff": "- 3\n+ 4"}]),
             json.dumps([{"job_id": "3"}, None])]  # fmt: skip
    found = list(MUTANTS.results("\n".join(lines)))
    assert found == [("killed", "- 1\n+ 2"), ("survived", "- 3\n+ 4")]


def test_the_tests_that_are_named_are_run_until_one_fails(tmp_path: Path) -> None:
    path = MUTANTS.configured(tmp_path, "tunefa/measure/race.py", ["tests/measure/test_race.py"])
    lines = dict(line.split(" = ") for line in path.read_text().splitlines() if " = " in line)
    assert json.loads(lines["module-path"]) == "tunefa/measure/race.py"
    command = json.loads(lines["test-command"])
    assert " -x " in command and command.endswith(" tests/measure/test_race.py")
