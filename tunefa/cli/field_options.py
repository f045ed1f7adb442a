"""The options for the fields of a workload: how each is written on a command line."""

from __future__ import annotations

from typing import Any

from tunefa.spec.workload_parts import FLAGS

SIZE_OPTIONS = {
    "batch": ("--batch", "Number of sequences.  [default: 1]"),
    "heads": ("--heads", "Query heads; without --kv-heads, also the KV heads.  [default: 32]"),
    "heads_kv": ("--kv-heads", "Key and value heads.  [default: 8]"),
    "seqlen_q": ("--seqlen", "Query rows, such as 8192 or 8k; without --seqlen-k, also the keys."),
    "seqlen_k": ("--seqlen-k", "Keys.  [default: as many as query rows]"),
    "head_dim": ("--head-dim", "Elements of one head, 16 to 256.  [default: 128]"),
    "window_left": (
        "--window",
        "Sliding window: keys up to the diagonal that a query sees, with the one on it.  "
        "[default: all]",
    ),
    "window_right": (
        "--window-right",
        "Keys beyond the diagonal that a query sees; the mask is not causal then.",
    ),
    "page_size": (
        "--page-size",
        "Keys of a page of a cache: with --decode, or for packed queries over pages, the op "
        "prefill.  [default: no pages]",
    ),
}
"""By field: the option, and its help."""
_OTHER_FLAGS = {
    "op": "--backward",
    "dtype": "--dtype",
    "causal": "--causal/--full",
    "softcap": "--softcap",
    "sinks": "--sinks",
    "e4m3cache": "--e4m3-cache",
    "mla": "--mla",
    "prefix": "--shared-prefix",
    "varlen": "--varlen",
    "deterministic": "--deterministic",
    "batchvariant": "--batch-variant",
}


def flag(name: str) -> str:
    """Returns the name of the option for a field."""
    return _OTHER_FLAGS.get(name) or SIZE_OPTIONS[name][0]


def words(name: str, value: Any) -> str:
    """Returns the option and value that a user writes for a field."""
    if name == "causal":
        return "--causal" if value else "--full"
    if name == "op":
        return f"--{'backward' if value == 'bwd' else value}"
    if name in FLAGS:
        return flag(name)
    return f"{flag(name)} {value + 1 if name == 'window_left' else value}"
