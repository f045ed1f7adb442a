"""Changes a module bit by bit, and says which changes no test notices.

    python scripts/mutants.py tunefa/measure/race.py tests/measure/test_race*.py
    python scripts/mutants.py --count 20 --seed 1 tunefa/store/lookup.py tests/store/test_lookup.py

Each change takes one run of the tests that are named, until the first that fails. All of it happens
in a copy of the tree. It ends with status 1 where a change survives.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 300.0
"""For the tests of one change; one that makes them hang is noticed then."""
COSMIC_RAY = (sys.executable, "-m", "cosmic_ray.cli")
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "build", "dist")
# `int | None` in an annotation is no operation: nothing ever computes it.
ANNOTATION = "%BitOr%"


def configured(folder: Path, module: str, tests: list[str]) -> Path:
    """cosmic-ray's configuration, written to `folder`."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    lines = [
        "[cosmic-ray]",
        f"module-path = {json.dumps(module)}",
        f"timeout = {LIMIT_S}",
        "excluded-modules = []",
        f"test-command = {json.dumps(' '.join(command))}",
        "[cosmic-ray.distributor]",
        'name = "local"',
    ]
    path = folder / "mutants.toml"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


def sampled(session: Path, count: int | None, seed: int) -> int:
    """Leaves `count` changes of a session, chosen by chance, or all; returns how many."""
    with sqlite3.connect(session) as database:
        query = f"select job_id from mutation_specs where operator_name not like '{ANNOTATION}'"
        found = sorted(row[0] for row in database.execute(query))
        if count is not None:
            found = random.Random(seed).sample(found, min(count, len(found)))
        marks = ",".join("?" * len(found))
        for table in ("mutation_specs", "work_items"):
            database.execute(f"delete from {table} where job_id not in ({marks})", found)
    return len(found)


def results(dump: str) -> Iterator[tuple[str, str]]:
    """(outcome, diff) of each change in what `cosmic-ray dump` prints."""
    for line in dump.splitlines():
        _, result = json.loads(line)
        if result is not None:
            yield result["test_outcome"], result["diff"]


def run(*words: Any, cwd: Path) -> str:
    """Standard output of a cosmic-ray command in the copy of the tree."""
    environment = {**os.environ, "PYTHONPATH": str(cwd)}
    command = [*COSMIC_RAY, *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", help="the file that is changed, such as tunefa/measure/race.py")
    parser.add_argument("tests", nargs="+", help="the tests that should notice")
    parser.add_argument("--count", type=int, help="how many changes to try, by chance; else all")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tunefa-mutants-") as name:
        folder, tree = Path(name), Path(name) / "tree"
        shutil.copytree(ROOT, tree, ignore=NOT_COPIED)
        config, session = configured(folder, given.module, given.tests), folder / "session.sqlite"
        run("init", config, session, cwd=tree)
        print(f"{sampled(session, given.count, given.seed)} changes of {given.module}", flush=True)
        run("exec", config, session, cwd=tree)
        found = list(results(run("dump", session, cwd=tree)))
    survivors = [diff for outcome, diff in found if outcome != "killed"]
    print(*survivors, f"{len(survivors)} of {len(found)} changes survive", sep="\n\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
