"""Recommends configs for chips: writes docs/chips.json by searches, and docs/chips.md from it.

    python -m benchmarks.chips search           # searches, about 15 minutes on two cores
    python -m benchmarks.chips search --chips a100,orin    # only these again
    python -m benchmarks.chips page             # the page, from the file

The searches are those of `tunefa search` without a device, so they need no GPU. Ascend NPUs need
Huawei's compiler (`tunefa ascend setup`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunefa.errors import unknown
from tunefa.experiments.table import Table
from tunefa.spec import arch_catalog as archs
from tunefa.spec.arch import GpuArch, NpuArch
from tunefa.spec.target import Target
from tunefa.store import results

DATA, PAGE = Path("docs/chips.json"), Path("docs/chips.md")
CHIPS = (
    *("a100", "rtx 3090", "orin", "rtx 4090", "h100", "h200", "b200", "rtx 5090"),
    *("ascend910b3", "ascend910_93"),
)
HEAD_DIMS = (64, 128, 256)
EXAMPLE = {"BLOCK_M": 128, "BLOCK_N": 128, "num_stages": 2}
"""The tile whose occupancy is explained, with 4 and with 8 warps."""
BUDGET = "40s"
_REPORTED = ("ub", "l1", "l0c")
"""The memories of an NPU's core whose use the compiler reports."""
_FEATURES = {
    "tma": "TMA",
    "wgmma": "WGMMA",
    "tcgen05": "tcgen05 (5th-generation tensor cores)",
    "tmem": "tensor memory",
    "clusters": "clusters",
    "cp_async": "cp.async",
    "fp8": "fp8",
    "fp4": "fp4",
    "tf32": "tf32",
}


def workload(target: Target, head_dim: int) -> str:
    """The workload that a head dimension is searched for: 16k tokens, 2,048 wide, causal."""
    dtype = "fp16" if isinstance(target.arch, NpuArch) else "bf16"
    return f"b4_h{2048 // head_dim}_q4096_d{head_dim}_{dtype}_causal"


def search(chips: Sequence[str]) -> None:
    """Searches for each chip and head dimension, and writes what was found as it comes."""
    found: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {}
    for chip in chips:
        target = Target.named(chip)
        rows = [row for head_dim in HEAD_DIMS if (row := searched(chip, target, head_dim))]
        found[chip] = {
            "arch": target.arch.name,
            "device": target.device.name,
            "features": sorted(target.arch.features),
            "rows": rows,
        }
        if isinstance(target.arch, GpuArch):
            found[chip]["example"] = [occupancy(chip, warps) for warps in (4, 8)]
        ordered = {name: found[name] for name in CHIPS if name in found}
        results.write_text(DATA, json.dumps(ordered, indent=1) + "\n")


def searched(chip: str, target: Target, head_dim: int) -> dict[str, Any] | None:
    """The winner of one search, and what limits it; None where no kernel serves the workload."""
    asked = ["--arch", chip, "-w", workload(target, head_dim)]
    made = command("search", *asked, "--budget", BUDGET)
    if made is None or made["record"] is None:
        return None
    record = made["record"]
    config = ",".join(f"{name}={value}" for name, value in record["config"].items())
    explained = command("explain", *asked, "--kernel", record["kernel"], "-c", config)
    assert explained is not None, "its config was compiled a moment ago"
    kept = ("objective", "kernel", "config", "median_us", "tflops", "resources")
    limits = ("limiter", "blocks_per_sm", "blocks_limiter", "blocks_by_limit", "interval_us",
              "memories")  # fmt: skip
    return {
        "workload": made["workload"],
        **{name: record[name] for name in kept},
        **{name: explained[name] for name in limits if name in explained},
        "decision": record.get("certificate", {}).get("decision"),
        "compared_with": record["provenance"].get("compared_with", []),
        "roofline": made["roofline"],
    }


def occupancy(chip: str, warps: int) -> dict[str, Any] | None:
    """The CTAs of the example's tile that an SM holds, at head_dim 64."""
    config = ",".join(f"{name}={value}" for name, value in {**EXAMPLE, "num_warps": warps}.items())
    asked = ["--arch", chip, "-w", workload(Target.named(chip), 64), "-c", config]
    found = command("explain", *asked, "--kernel", "attention_fwd_triton")
    if found is None:
        return None
    kept = ("config", "resources", "blocks_per_sm", "blocks_by_limit", "blocks_arithmetic")
    return {name: found[name] for name in (*kept, "predicted_us")}


def command(*words: str) -> dict[str, Any] | None:
    """Runs `tunefa` with --json; None, with its message on standard error, if it fails."""
    line = [sys.executable, "-m", "tunefa", *words, "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    print(f"tunefa {' '.join(words)}: {done.returncode}", file=sys.stderr)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def page(found: dict[str, Any]) -> str:
    """The page, in Markdown."""
    parts = [_INTRODUCTION]
    for chip in found.values():
        parts.append(f"## {chip['device']} ({chip['arch']})\n")
        parts.append(_features(chip["features"]))
        parts.append(_table(chip["rows"]))
        parts += [_remark(chip["arch"], chip["rows"])]
    parts += _example(found)
    return "\n".join(part for part in parts if part)


_INTRODUCTION = """# Recommended configs

The best config of each chip by head dimension, for 16,384 tokens in sequences of 4,096, heads that
are 2,048 wide in all, and a causal mask; bf16, on NPUs fp16. `python -m benchmarks.chips search`
finds them with `tunefa search`, without a device, and `python -m benchmarks.chips page` writes this
page. For your own shapes run `tunefa search --arch CHIP -w WORKLOAD`.

"Basis" says what the figure rests on: *known* is a config that was measured on the chip or one of
its family, with its time expected by the model from that measurement; *predicted* is the model's
alone. "Limited by" is the pipe or the memory that takes longest, see [the model](model.md).
"""


def _features(names: Sequence[str]) -> str:
    known = [text for name, text in _FEATURES.items() if name in names]
    return f"Features: {', '.join(known)}.\n" if known else ""


def _table(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "No kernel serves these workloads.\n"
    head = ("head_dim", "kernel", "config", "us", "TFLOP/s", "CTAs per SM", "limited by", "basis")
    words = frozenset({"kernel", "config", "CTAs per SM", "limited by", "basis"})
    return Table("", head, [_cells(row) for row in rows], words=words).markdown()


def _cells(row: dict[str, Any]) -> list[str]:
    head_dim = next(part[1:] for part in row["workload"].split("_") if part[0] == "d")
    config = ", ".join(f"{name} {value}" for name, value in row["config"].items())
    return [
        head_dim,
        row["kernel"],
        config,
        f"{row['median_us']:,.0f}",
        f"{row['tflops']:,.0f}",
        _residency(row),
        row.get("limiter") or _fullest(row),
        _basis(row),
    ]


def _residency(row: dict[str, Any]) -> str:
    if "blocks_per_sm" not in row:
        return ""
    return f"{row['blocks_per_sm']} ({row['blocks_limiter']})"


def _fullest(row: dict[str, Any]) -> str:
    """The memory of an NPU's core that the config fills most."""
    shares = {
        name: memory["needed_bytes"] / memory["available_bytes"]
        for name, memory in row.get("memories", {}).items()
        if memory["needed_bytes"] is not None and name in _REPORTED
    }
    if not shares:
        return ""
    name = max(shares, key=lambda each: shares[each])
    return f"{name.upper()}, {shares[name]:.0%} full"


def _basis(row: dict[str, Any]) -> str:
    if "measured for" in (row.get("decision") or ""):
        return "known"
    return str(row["objective"])


def _remark(arch: str, rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    if isinstance(archs.load(arch), NpuArch):
        return (
            "\nThe memories are those that Huawei's compiler plans. The times come from a latency "
            "model fitted to public measurements of a 910B3; nothing ran on an NPU.\n"
        )
    devices = list(dict.fromkeys(name for row in rows for name in row["compared_with"]))
    if devices:
        return f"\nThe model was compared with measurements on {' and '.join(devices)}.\n"
    return (
        "\nThe model was never compared with a device of this family: these figures rest on "
        "published peaks and on the compiler's resources only.\n"
    )


def _example(found: dict[str, Any]) -> list[str]:
    """The reason that a tile that shared memory would hold twice may still run once."""
    chip = found.get("a100", {})
    rows = [row for row in chip.get("example", []) if row]
    if not rows:
        return []
    parts = [
        "## Why shared memory alone does not say how many CTAs run: 128 x 128 at head_dim 64\n"
    ]
    parts.append(
        f"The tile BLOCK_M 128, BLOCK_N 128 with {EXAMPLE['num_stages']} stages on "
        f"{chip['device']}, as `tunefa explain` counts it:\n"
    )
    for row in rows:
        used, limits = row["resources"], row["blocks_by_limit"]
        parts.append(
            f"* {row['config']['num_warps']} warps: shared memory ({used['smem_bytes']:,} B) would "
            f"allow {limits['smem']} CTAs per SM, registers ({used['registers']} per thread) allow "
            f"{limits['registers']}, so {row['blocks_per_sm']} run; "
            f"{used['spill_bytes'] or 0:,} B per thread spill; {row['predicted_us']:,.0f} us "
            f"predicted. Registers: {row['blocks_arithmetic']['registers']}."
        )
    parts.append(
        "\nThe fp32 accumulator alone is 128 x 64 numbers and the scores are 128 x 128: with 4 "
        "warps 64 and 128 registers of each thread. More warps spread them over more threads."
    )
    return [*parts, ""]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chips",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", choices=["search", "page"])
    parser.add_argument("--chips", default=",".join(CHIPS), help="separated by commas")
    made = parser.parse_args(arguments)
    chips = made.chips.split(",")
    for chip in chips:
        if chip not in CHIPS:
            parser.error(str(unknown("chip", chip, CHIPS)))
    if made.step == "search":
        search(chips)
    results.write_text(PAGE, page(json.loads(DATA.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
