"""What it costs not to search: the runtime's choice for workloads that nobody tuned.

    python -m benchmarks.neighbours --budget 20s --out neighbours.jsonl

For each of twenty workloads, of other lengths, batches and heads than those in results/: the config
that `import tunefa` runs there, and a short search of that very workload, which the choice takes
part in. The regret is how much slower the choice is than what the search finds. Nothing is kept in
the user's store.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tunefa import arch as archs
from tunefa import kernel as kernels
from tunefa import search, store, transfer
from tunefa.budget import Budget
from tunefa.lookup import Choice
from tunefa.store import Store
from tunefa.workload import Workload

WORKLOADS = (
    "b3_h12_q640_d64_full",
    "b5_h12_q900_d64_causal",
    "b2_h20_q1536_d64_full",
    "b1_h25_q3000_d64_causal",
    "b1_h14_kv2_q6000_d64_causal",
    "b6_h16_q1000_d64_fp16_causal",
    "b12_h8_q700_d128_full",
    "b3_h24_q1300_d128_causal",
    "b1_h40_q2500_d128_causal",
    "b1_h28_kv4_q3500_d128_causal",
    "b2_h24_kv8_q5000_d128_causal",
    "b1_h64_kv8_q12000_d128_causal",
    "b1_h10_q10000_d128_full",
    "b1_h32_kv8_q1500_k9000_d128_causal",
    "b4_h20_q1100_d128_fp16_full",
    "b7_h4_q800_d256_full",
    "b2_h10_q2200_d256_causal",
    "b1_h16_kv8_q7000_d256_causal",
    "b2_h18_q3300_d80_causal",
    "b3_h16_q2600_d96_full",
)


@dataclass(frozen=True)
class Regret:
    """The runtime's choice for one workload beside what a search of it found."""

    workload: str
    why: str
    """Where the choice is from."""
    chosen: str
    """Its kernel."""
    found: str
    """The kernel of what the search found."""
    chosen_us: float
    found_us: float
    trials: int

    @property
    def excess(self) -> float:
        """0.02: the choice takes 2 % longer."""
        return self.chosen_us / self.found_us - 1.0


def of(choice: Choice, result: search.Result) -> Regret:
    """Both from the search's own figures. Raises ValueError if one of the two has none."""
    timed = {
        (f.kernel, tuple(sorted(f.trial.config.items()))): f.trial.median_us
        for f in result.finished
        if f.trial.outcome == "ok"
    }
    chosen_us = timed.get((choice.kernel, tuple(sorted(choice.config.items()))))
    if result.record is None or chosen_us is None:
        raise ValueError(f"{result.request.workload}: the search did not time the choice")
    return Regret(
        workload=str(result.request.workload),
        why=choice.why,
        chosen=choice.kernel,
        found=result.record.kernel,
        chosen_us=chosen_us,
        found_us=result.record.median_us,
        trials=len(result.finished),
    )


def table(regrets: Sequence[Regret]) -> str:
    """Markdown, and the regrets in one sentence."""
    lines = ["| workload | choice | us | found | regret |", "| --- | --- | ---: | ---: | ---: |"]
    for each in regrets:
        short = each.workload.removeprefix("fwd_")
        times = f"{each.chosen_us:.1f} | {each.found_us:.1f} | {each.excess:.1%}"
        lines.append(f"| {short} | {each.why} | {times} |")
    excesses = [each.excess for each in regrets]
    said = f"Regret: median {statistics.median(excesses):.1%}, largest {max(excesses):.1%}."
    return "\n".join(lines) + f"\n\n{said}\n"


def measured(workload: Workload, known: Store, budget: str) -> Regret:
    """Asks the runtime's lookup, then searches; the store of the search is gone afterwards."""
    import torch

    chip, device = archs.find(torch.cuda.get_device_name())
    serving = tuple(kernels.serving(workload, chip))
    choice = transfer.choose(known, workload, chip, device.name, serving)
    with tempfile.TemporaryDirectory() as folder:
        request = search.Request(
            *(workload, chip, device, True, serving, Budget.parse(budget)), mode="graph"
        )
        return of(choice, search.search(request, Store([Path(folder), *known.roots])))


def main() -> None:
    """Prints each regret, then the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.neighbours",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workloads", nargs="*", type=Workload.parse, metavar="WORKLOAD")
    parser.add_argument("--budget", default="20s", help="of each search; default: 20s")
    parser.add_argument("--out", type=Path, help="append JSON lines to this file")
    options = parser.parse_args()
    known = store.default_store()
    regrets = []
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUNEFA_HOME"] = home  # of the journals
        for workload in options.workloads or map(Workload.parse, WORKLOADS):
            try:
                found = measured(workload, known, options.budget)
            except ValueError as error:
                print(error, file=sys.stderr)
                continue
            regrets.append(found)
            print(f"{found.workload}: {found.excess:.1%} ({found.why})", file=sys.stderr)
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(found)) + "\n")
    if not regrets:
        sys.exit("nothing was measured")
    print(table(regrets), end="")


if __name__ == "__main__":
    main()
