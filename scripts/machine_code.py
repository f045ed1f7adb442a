"""Compares the machine code of kernels before and after a change of their source.

    python scripts/machine_code.py dump before.json      # before the change
    python scripts/machine_code.py dump after.json       # after it, with the same compilers
    python scripts/machine_code.py renew before.json after.json

`dump` compiles configs of each NVIDIA kernel (those of its shipped records, its defaults, and some
random ones of its space) and writes a hash of the machine code of each. Where all hashes of a
kernel are the same, `renew` writes its old and new source hash to tunefa/store/source_hashes.yaml
and the new one into the shipped results. Where some differ, it changes nothing for that kernel, and
the exit status is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tunefa import assets
from tunefa.compile import languages
from tunefa.compile.contract import CompileError
from tunefa.spec import kernel as kernels
from tunefa.spec import strict_yaml
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload
from tunefa.store import added_parameters, document, results, source_hashes
from tunefa.store.record import Record

WORKLOADS = (
    "b1_h8_kv8_q512_d128_bf16_causal",
    "b2_h16_kv4_q4096_d64_fp16_causal",
    "b2_h16_kv4_q4000_d96_bf16_full",
    "b1_h8_kv2_q2048_d192_dv128_bf16_causal",
    "b1_h8_kv2_q2048_d128_e4m3_causal",
    "b1_h8_kv2_q4096_d256_e4m3_full",
    "b4_h8_kv2_q1024_d128_bf16_causal_w256",
    "b4_h8_kv2_q1024_d64_bf16_causal_softcap_varlen",
    "b1_h8_kv2_q1024_d64_fp32_causal",
    "bwd_b2_h16_kv4_q4000_d96_bf16_full",
    "bwd_b4_h8_kv2_q1024_d128_bf16_causal_w256",
    "bwd_b4_h8_kv2_q1024_d64_fp16_causal_varlen",
    "decode_b16_h32_kv8_q1_k4096_d128_bf16",
    "decode_b4_h32_kv8_q2_k2000_d128_bf16_page16_e4m3cache",
    "decode_b16_h128_kv1_q1_k8192_d576_dv512_bf16_page64_mla",
    "matmul_m4096_bf16",
    "matmul_m1000_n3000_k500_fp32_nt",
)
RANDOM_CONFIGS = 4
"""The number of random configs that are compiled for each workload, beside the default."""


def digest(case: Case, config: dict[str, Any]) -> str:
    """A hash of the machine code and resources of a config, or why it does not compile."""
    try:
        text = repr(languages.load(case.kernel.language).compile(case, config).resources)
    except CompileError as error:
        return f"no machine code: {error}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cases(kernel: Kernel) -> Iterator[tuple[Case, dict[str, Any]]]:
    """The configs of a kernel that are compared."""
    for record in results.Store([assets.root("results")]).records():
        if record.kernel == kernel.name:
            yield Case(kernel, record.workload, Target.named(record.arch)), dict(record.config)
    for arch in ("sm80", "sm90"):
        for text in WORKLOADS:
            case = Case(kernel, Workload.parse(text), Target.named(arch))
            if case.why_not() is None:
                feasible = case.feasible().configs
                chosen = random.Random(text).sample(feasible, min(RANDOM_CONFIGS, len(feasible)))
                yield from ((case, dict(config)) for config in (case.default(), *chosen))


def dump(path: Path) -> None:
    """Writes the source hash and the hashes of the machine code of every kernel for NVIDIA GPUs."""
    found: dict[str, Any] = {}
    for name in kernels.names():
        kernel = kernels.load(name)
        if kernel.language == "ascend" or kernel.is_library:  # they have none
            continue
        code = {}
        for case, config in cases(kernel):
            key = json.dumps([str(case.workload), case.arch.name, config])
            code[key] = code.get(key) or digest(case, config)
        found[name] = {"source_hash": kernel.source_hash, "code": code}
        print(f"{name}: {len(code)} configs", file=sys.stderr)
    path.write_text(json.dumps(found, indent=1), encoding="utf-8")


def renew(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Writes which source hashes have the same code; returns the kernels with different code."""
    table: dict[str, dict[str, str]] = {}
    if source_hashes.TABLE.exists():
        table = dict(strict_yaml.load_file(source_hashes.TABLE) or {})
    differing = []
    for name in sorted(before.keys() & after.keys()):
        then, now = before[name], after[name]
        if then["source_hash"] == now["source_hash"]:
            continue
        old = _completed(name, then["code"])
        shared = old.keys() & now["code"].keys()
        if not shared or any(old[key] != now["code"][key] for key in shared):
            differing.append(name)
            continue
        print(f"{name}: {len(shared)} configs have the same machine code")
        table[name] = {**table.get(name, {}), then["source_hash"]: now["source_hash"]}
    lines = ["# By kernel, past source hashes and the later ones of the same machine code.",
             "# Written by scripts/machine_code.py."]  # fmt: skip
    for name in sorted(table):
        lines.append(f"{name}:")
        lines += [f'  "{old}": "{new}"' for old, new in table[name].items()]
    results.write_text(source_hashes.TABLE, "\n".join([*lines, ""]))
    source_hashes.read.cache_clear()
    return differing


def _completed(kernel: str, code: dict[str, str]) -> dict[str, str]:
    """The hashes, by configs that have the parameters which were added since."""
    if kernel not in added_parameters.ADDED:
        return code
    found = {}
    for key, each in code.items():
        workload, arch, config = json.loads(key)
        made = added_parameters.completed(kernel, config)
        found[json.dumps([workload, arch, made])] = each
    return found


def renew_results() -> None:
    """Gives the shipped results the newest hash of the same machine code."""
    for path in sorted(assets.root("results").rglob("*.yaml")):
        renewed = [_renewed(record) for record in results.read(path)]
        results.write_text(path, document.to_text(renewed))


def _renewed(record: Record) -> Record:
    data = record.to_dict()
    data["provenance"] = {**record.provenance, "source_hash": record.source_hash}
    return Record.from_dict(data)


def main() -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["dump", "renew"])
    parser.add_argument("paths", nargs="+", type=Path)
    given = parser.parse_args()
    if given.command == "dump":
        dump(given.paths[0])
        return 0
    before, after = (json.loads(path.read_text(encoding="utf-8")) for path in given.paths)
    differing = renew(before, after)
    renew_results()
    for name in differing:
        print(f"{name}: the machine code has changed: measure it again")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
