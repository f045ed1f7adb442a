"""Runs latent attention in Triton's interpreter: `python -m tests.support.interpreted_latent`.

Prints one JSON object a line: a workload, the worst error of a row, and whether each sequence has
the same bits alone. TRITON_INTERPRET=1 must be set before Triton is imported.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.support import latent_calls, triton_interpreter
from tunefa.compile import languages
from tunefa.measure import ops
from tunefa.spec.target import Case

CASES: list[tuple[str, list[int], dict[str, int]]] = [
    ("b4_h1_k300_d576_dv512_fp16", [0, 1, 37, 300], {}),
    ("b4_h5_k300_d576_dv512_fp16_page16", [300, 0, 129, 1], {}),
    (
        "b3_h16_k600_d576_dv512_fp16_page64",
        [1, 600, 256],
        {"SWAP_AB": 1, "BLOCK_N": 64, "num_stages": 2, "CTAS_PER_SM": 1},
    ),
    ("b3_h64_k300_d192_dv128_fp16_page256", [0, 300, 17], {"BLOCK_M": 64, "num_warps": 8}),
    ("b2_h128_k290_d192_dv128_fp16", [290, 1], {"BLOCK_M": 64, "num_warps": 8}),
    ("b4_h16_q4_k300_d160_dv96_fp16_page32", [3, 0, 300, 1], {"BLOCK_M": 32}),
]
"""Texts of workloads, lengths, and what differs from the default config."""


def run(text: str, config: dict[str, Any], tensors: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Launches attention_decode_mla_triton; returns (out, lse)."""
    case = Case.from_names("attention_decode_mla_triton", text, "sm90")
    spec = ops.of(case.workload).launch_spec(case, config)
    languages.load("triton").interpret(spec, tensors)
    return tensors[3], tensors[4]


def checked(text: str, lengths: list[int], changes: dict[str, int]) -> dict[str, Any]:
    """Runs a batch and each of its sequences alone; returns what is printed."""
    case = Case.from_names("attention_decode_mla_triton", text, "sm90")
    workload = case.workload
    config = {**case.default(), "MIN_SPLIT_KEYS": 128, **changes}
    assert case.refusal(config) is None, case.refusal(config)
    tensors = latent_calls.made(workload, lengths)
    found = run(text, config, tensors)
    same = True
    for number in range(len(lengths)):
        alone = str(replace(workload, batch=1))
        own = run(alone, config, latent_calls.of_sequence(tensors, workload, number))
        same &= all(torch.equal(x[0], y[number]) for x, y in zip(own, found, strict=True))
    wanted = latent_calls.right(workload, tensors, lengths, workload.head_dim**-0.5)
    return {"text": text, "error": latent_calls.worst_row(found, wanted), "same_bits": same}


def main() -> None:
    """Prints each case."""
    triton_interpreter.prepare()
    for text, lengths, changes in CASES:
        print(json.dumps(checked(f"decode_{text}_mla", lengths, changes)), flush=True)


if __name__ == "__main__":
    main()
