"""The workloads that are measured, by group."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from tunefa.spec.workload import Workload

TOKENS, HIDDEN = 16384, 2048
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
MASKS = (False, True)
MODELS = {"Llama 3 8B": (32, 8), "Llama 3 70B": (64, 8), "Qwen2 7B": (28, 4)}
"""(heads, heads_kv) of models with head_dim 128."""

TITLES: Mapping[str, str] = {
    "first": "bf16, 16,384 tokens, 2,048 wide",
    "fp16": "fp16, head_dim 128",
    "llama": "Grouped queries, head_dim 128, causal: " + ", ".join(MODELS),
    "dims": "Head dimensions that are no powers of two",
    "rect": "More keys than queries",
    "window": "Sliding window of 1,024 keys",
    "packed": "Packed sequences: 32 of 125 to 4,000 tokens",
    "given": "Others",
}
"""The title of each group; `given` are the workloads of the command line."""


def group(name: str) -> list[Workload]:
    """The workloads of a group, other than `given`, in the order in which they are measured."""
    return {
        "first": lambda: [
            _wide(s, d, causal)
            for d, s, causal in itertools.product((64, 128, 256), LENGTHS, MASKS)
        ],
        "fp16": lambda: [
            replace(_wide(s, 128, causal), dtype="fp16")
            for s, causal in itertools.product(LENGTHS, MASKS)
        ],
        "llama": lambda: [
            Workload.of(batch=batch, heads=heads, heads_kv=heads_kv, seqlen_q=s)
            for (heads, heads_kv), batch, s in itertools.product(
                MODELS.values(), (1, 8), (1024, 4096, 16384)
            )
        ],
        "dims": lambda: [
            _wide(4096, d, causal) for d, causal in itertools.product((72, 80, 96, 160, 192), MASKS)
        ],
        "rect": lambda: [Workload.parse("b1_h16_q4096_k15360_d64_full")],
        "window": lambda: [replace(_wide(16384, d, True), window_left=1023) for d in (64, 128)],
        "packed": lambda: [
            Workload.parse(f"b32_{heads}_q4000_d{d}_{mask}_varlen")
            for d, heads, mask in itertools.product(
                (64, 128), ("h16", "h32_kv8"), ("full", "causal")
            )
        ],
    }[name]()


def _wide(seqlen: int, head_dim: int, causal: bool) -> Workload:
    """A workload with 16k tokens in all, and heads that are 2,048 wide in all."""
    return Workload.of(
        batch=TOKENS // seqlen,
        heads=HIDDEN // head_dim,
        seqlen_q=seqlen,
        head_dim=head_dim,
        causal=causal,
    )
