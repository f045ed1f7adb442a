"""Replays recorded landscapes to choose how sure a prediction must be.

    python -m benchmarks.anchored

Needs no GPU, but scikit-learn. For each landscape and kernel, the best known config is that of the
kernel's measured default or of a record, without the records for the landscape's own workload. The
learned model never saw that workload either; its errors are those of the model that is shipped,
which were held out as well. Another config of the landscape
replaces it if the gain by the cost model exceeds so many standard deviations of the comparison. The
tables say how much slower the recommended config is than the best of the landscape, and how often
and how well the known one was replaced. Where the model gives several configs one time, their mean
counts.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.bakeoff import held_out
from tunefa.costmodel import learned
from tunefa.costmodel.anchor import Anchor
from tunefa.costmodel.decision import Expected, decide
from tunefa.spec import kernel as kernels
from tunefa.spec.trial import identity
from tunefa.store import landscape, lookup, results
from tunefa.store.landscape import Landscape
from tunefa.store.record import Record

FOLDER = Path(__file__).parent / "landscapes"
SURE = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
"""The numbers of standard deviations that are compared; 0 takes the least predicted time."""
EQUAL = 1e-4
"""Predicted times that differ by less, relatively, are equal."""


@dataclass(frozen=True)
class Replayed:
    """One kernel's landscape with what was known without it."""

    workload: str
    kernel: str
    known: Expected
    rivals: Sequence[Expected]
    excess: dict[tuple[object, ...], float]
    """By config, how much slower than the best: 0.02 is 2 %."""

    def recommended(self, sure: float) -> tuple[float, bool]:
        """Returns the excess of the config that `sure` recommends, and whether it is a new one."""
        rivals = [replace(rival, sure=sure) for rival in self.rivals]
        winner = decide(self.known, rivals).winner
        if winner.key == self.known.key:
            return self.excess[identity(winner.config)], False
        equal = [r for r in rivals if abs(r.time_us / winner.time_us - 1) < EQUAL]
        return statistics.mean(self.excess[identity(r.config)] for r in equal), True


def replayed(found: Landscape, records: Iterable[Record]) -> list[Replayed]:
    """Returns a landscape's kernels of which a known config is in it."""
    others = [record for record in records if record.workload != found.workload]
    ranked = lookup.by_trust(others, found.workload, found.target)
    made = []
    for name in found.kernels:
        kernel = kernels.load(name)
        anchor = Anchor.of(ranked, found.workload, found.target, [kernel])
        excess, best = found.excess(name), anchor.best_known
        if best is None or identity(best.winner.config) not in excess:
            continue
        right = [each for each in found.trials(name) if identity(each.config) in excess]
        rivals = [anchor.expected(name, each.config, each.resources) for each in right]
        of_known = [each for each in rivals if each.key == best.winner.key]
        workload = str(found.workload).removeprefix("fwd_")
        made.append(
            Replayed(workload, name, of_known[0], [r for r in rivals if not r.source], excess)
        )
    return made


def forget_workload(path: Path) -> None:
    """Puts a model that never saw the workload of a landscape where the user's model is."""
    model = held_out.model(path)
    if model is not None:
        shipped = learned.shipped(model.kernel, model.arch)
        figures = None if shipped is None else shipped.figures
        replace(model, figures=figures).save(learned.path(model.kernel, model.arch))


def table(found: Sequence[Replayed]) -> str:
    """A Markdown table: for each number of standard deviations, how much slower than the best."""
    lines = [
        "| standard deviations | median | mean | worst | worst beside known | replaced | faster |",
        "|---|---|---|---|---|---|---|",
    ]
    for sure in SURE:
        chosen = [each.recommended(sure) for each in found]
        known = [each.excess[identity(each.known.config)] for each in found]
        over = [(1 + own) / (1 + k) - 1 for (own, _), k in zip(chosen, known, strict=True)]
        excess = [own for own, _ in chosen]
        new = [loss for loss, (_, is_new) in zip(over, chosen, strict=True) if is_new]
        faster = sum(loss < 0 for loss in new)
        figures = statistics.median(excess), statistics.mean(excess), max(excess), max(over)
        cells = " | ".join(f"{each:.1%}" for each in figures)
        lines.append(f"| {sure:g} | {cells} | {len(new)} of {len(found)} | {faster} |")
    known = [each.excess[identity(each.known.config)] for each in found]
    own = (statistics.median(known), statistics.mean(known), max(known))
    lines.append(f"| the known config | {' | '.join(f'{each:.1%}' for each in own)} | | | |")
    return "\n".join(lines)


def main() -> None:
    """Prints the table over all landscapes, then one for each kernel."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.anchored",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="*", type=Path, default=[FOLDER, FOLDER / "sampled"])
    records = results.Store([results.shipped_root()]).records()
    found = []
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUNEFA_HOME"] = home
        for folder in parser.parse_args().folders:
            for path in sorted(folder.glob("*.jsonl*")):
                forget_workload(path)
                found += replayed(landscape.load(path), records)
    if not found:
        raise SystemExit("no landscape holds a known config")
    print(f"All kernels, {len(found)} landscapes:\n\n{table(found)}")
    for name in sorted({each.kernel for each in found}):
        own = [each for each in found if each.kernel == name]
        print(f"\n{name}, {len(own)} landscapes:\n\n{table(own)}")
    for each in found:
        raw, kept = each.recommended(0.0)[0], each.excess[identity(each.known.config)]
        best = min(each.rivals, key=lambda rival: rival.time_us)
        gain = math.log(each.known.time_us / best.time_us)
        print(f"{each.kernel} {each.workload}: known {kept:.1%}, fastest by the model {raw:.1%}"
              f" (expected gain {gain:.1%})")  # fmt: skip


if __name__ == "__main__":
    main()
