"""Runs all that is asked about a Llama, one program after the other, and says what came out.

    python -m benchmarks.llama_session --out FOLDER [--budget 20s] [--top 3]
    python -m benchmarks.llama_session --out FOLDER --only search     # a step again

1. `measure`: benchmarks.llama, all its tasks and variants, in turns.
2. `variable`: the same with TUNEFA_ACTIVATE=1 and nothing else changed.
3. `trace`: which workloads the program runs. It runs with attn_implementation="tunefa": for
   `sdpa`, Transformers gives steps of a generation a mask, and attention with one is no workload.
4. `search`: the heaviest of them.

Then it says, for each task, how many times as fast attention and the whole are as with PyTorch's
own choice, and the share of attention's time that is spent in tunefa's kernels.

What stands behind -- goes to benchmarks.llama: on a CPU `-- --device cpu --layers 1 --tokens 128
--hidden 512 --new 2`, with heads of 16.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import markdown, point_files
from benchmarks.point_files import Point

ENTRY = "[torch.backends]\ntunefa_of_this_tree = tunefa.integrations.autoload:at_import\n"
METADATA = "Metadata-Version: 2.1\nName: tunefa-of-this-tree\nVersion: 0\n"
STEPS = ("measure", "variable", "trace", "search")


def commands(given: argparse.Namespace) -> dict[str, list[str]]:
    """The command of each step."""
    out: Path = given.out
    llama = [sys.executable, "-m", "benchmarks.llama", *given.more]
    tunefa = [sys.executable, "-m", "tunefa"]
    traced = [*llama, "--variant", "tunefa", "--rounds", "1", "--no-graphs"]
    chip = [] if torch.cuda.is_available() else ["--arch", "sm90"]
    return {
        "measure": [*llama, "--rounds", "3", "--out", str(out / "llama.json")],
        "variable": [
            *llama, "--variant", "sdpa", "--rounds", "3", "--out", str(out / "variable.json"),
        ],
        "trace": [*tunefa, "trace", "-o", str(out / "llama.yaml"), "--", *traced],
        "search": [
            *tunefa, "search", "--workloads", str(out / "llama.yaml"), "--top", str(given.top),
            "--budget", given.budget, "--out", str(out / "found.yaml"), *chip,
        ],
    }  # fmt: skip


def environment(step: str, site: Path) -> dict[str, str]:
    """The variables of a step. PyTorch finds this tree's tunefa in `site`, also where it is not
    installed."""
    info = site / "tunefa_of_this_tree-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(METADATA, encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY, encoding="utf-8")
    own = {name: text for name, text in os.environ.items() if name != "TUNEFA_ACTIVATE"}
    paths = [str(site), str(Path(__file__).parents[1]), own.get("PYTHONPATH", "")]
    own["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return own | ({"TUNEFA_ACTIVATE": "1"} if step == "variable" else {})


def summary(measured: Sequence[Point], by_variable: Sequence[Point]) -> str:
    """A row for each task and variant beside PyTorch's own choice, `sdpa` of `measured`."""
    rows = [["task", "variant", "whole", "attention", "in tunefa's kernels"]]
    named = [(row["variant"], row) for row in measured]
    named += [("TUNEFA_ACTIVATE=1", row) for row in by_variable]
    plain = {row["task"]: row for name, row in named if name == "sdpa" and "ms" in row}
    for name, row in named:
        first = plain.get(row["task"])
        if name == "sdpa" or first is None:
            continue
        cells = [row.get("failed", ""), "", ""]
        if "ms" in row:
            cells = [f"{first['ms'] / row['ms']:.2f} x", "", ""]
            if row.get("attention_ms") and first.get("attention_ms"):
                attention = row["attention_ms"]
                cells[1] = f"{first['attention_ms'] / attention:.2f} x"
                cells[2] = f"{row['tunefa_ms'] / attention:.1%}"
        rows.append([row["task"], name, *cells])
    return markdown.table(rows)


def ran(step: str, given: argparse.Namespace, site: Path) -> bool:
    """Runs a step, and returns whether it ended well."""
    print(f"== {step}", flush=True)
    start = time.perf_counter()
    done = subprocess.run(commands(given)[step], env=environment(step, site))
    print(f"== {step}: {time.perf_counter() - start:.0f} s, exit {done.returncode}", flush=True)
    return done.returncode == 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of all files")
    parser.add_argument("--budget", default="20s", help="of each search")
    parser.add_argument("--top", type=int, default=3, help="searches")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("more", nargs="*", help="options of benchmarks.llama, behind --")
    return parser.parse_args()


def main() -> int:
    """Runs the steps, also those behind one that fails. Returns 1 if one failed."""
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as site:
        failed = [step for step in given.only if not ran(step, given, Path(site))]
    files = [given.out / name for name in ("llama.json", "variable.json")]
    if all(path.exists() for path in files):
        print(summary(*(point_files.read(path) for path in files)))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
