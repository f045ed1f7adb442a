"""Runs the kernel that lists packed sequences' tiles in Triton's interpreter, on random lengths:
`python -m tests.support.packed_tables`.

Prints one JSON object a line: what was given, and what it wrote. TRITON_INTERPRET=1 must be set
before Triton is imported.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch

from tests.support import triton_interpreter
from tunefa.spec import kernel as kernels

UNWRITTEN = -7
BATCHES = [*[1, 1, 2, 3, 7, 32, 127, 128, 129, 300] * 2, 520]


def cases() -> Iterator[dict[str, Any]]:
    """Lengths with empty sequences on either side, groups of heads, sections of one to all."""
    chance = random.Random(0)
    for batch in BATCHES:
        group = chance.choice([1, 2, 4])
        yield {
            "seqlens_q": _lengths(chance, batch),
            "seqlens_k": _lengths(chance, batch),
            "heads": group * chance.choice([1, 2, 5, 17] if batch < 100 else [1, 2]),
            "group": group,
            "section": chance.choice([1, 100, 1000, 3000, 10**6]),
            "rows": chance.choice([64, 128, 192, 256]),
        }
    nothing = {"seqlens_q": [0, 0], "seqlens_k": [5, 0], "heads": 2, "group": 1}
    yield {**nothing, "section": 100, "rows": 64}


def _lengths(chance: random.Random, batch: int) -> list[int]:
    longest = chance.choice([1, 60, 300, 1000])
    kinds = (lambda: 0, lambda: longest, lambda: chance.randint(0, longest))
    return [chance.choice(kinds)() for _ in range(batch)]


def made(case: dict[str, Any]) -> tuple[list[int], list[list[int]]]:
    """(schedule, tiles) as the kernel writes them."""
    host = kernels.load("attention_fwd_gluon_sm90").module.packed_tiles
    lengths = case["seqlens_q"], case["seqlens_k"]
    cu_seqlens = [torch.tensor([0, *accumulate(x)], dtype=torch.int32) for x in lengths]
    room = sum(lengths[0]) // case["rows"] + len(lengths[0])
    schedule = torch.full((2,), UNWRITTEN, dtype=torch.int32)
    tiles = torch.full((room * case["heads"] + 1, host.COLUMNS), UNWRITTEN, dtype=torch.int32)
    host.pack_tiles()[(-(-room // 32),)](
        *(*cu_seqlens, schedule, tiles, len(cu_seqlens[0]), case["heads"], case["group"]),
        *(case["section"], case["rows"], host.COLUMNS, 32, 128, 16),
    )
    return schedule.tolist(), tiles.tolist()


def main() -> None:
    """Prints all cases."""
    triton_interpreter.prepare()
    for case in cases():
        schedule, tiles = made(case)
        print(json.dumps({"case": case, "schedule": schedule, "tiles": tiles}))


if __name__ == "__main__":
    main()
