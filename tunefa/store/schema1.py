"""Translates files of schema 1, where parameters of kernels had other names.

Schema 2 uses the names of FlashAttention, Triton and CUDA. Files of schema 1 can still be read:
results and lock files are translated as a whole, journals line by line. New names stay as they are,
because a journal of schema 1 may have been continued with schema 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COMMON = {
    "STAGES": "num_stages",
    "SLACK": "RESCALE_THRESHOLD",
}
_SM90 = {
    **_COMMON,
    "O_PARTS": "EPILOGUE_SUBTILE",
    "HALF_DIAGONAL": "SPLIT_DIAGONAL_BLOCK",
    "SECTION_MB": "L2_SECTION_MB",
}
NAMES: Mapping[str, Mapping[str, str]] = {
    "attention_fwd_cuda_sm90": {
        **_SM90,
        "OVERLAP": "INTRA_WG_OVERLAP",
        "SWIZZLE": "SWIZZLE_BYTES",
        "P_SHARED": "P_IN_SMEM",
        "CLUSTER": "CLUSTER_SIZE",
    },
    "attention_fwd_gluon_sm90": {
        **_SM90,
        "PACK_HEADS": "PACK_GQA",
        "K_FIRST": "LOAD_K_FIRST",
        "LANE_SUM": "DEFER_ROW_SUM",
        "EXP2_FMA": "EX2_EMULATION_FREQ",
    },
    "attention_fwd_cuda_sm80": {
        **_COMMON,
        "WARPS": "num_warps",
        "SHARE_QK": "SHARE_QK_SMEM",
        "BLOCKS_PER_SM": "MIN_BLOCKS_PER_SM",
    },
    "attention_fwd_triton": {"LOADS": "USE_TMA", "SECTION_HEADS": "L2_SECTION_HEADS"},
    "attention_fwd_ascend": {"LOOPS": "SPLIT_MASK_LOOP"},
}
"""By kernel, the names in schema 1 and the names now."""

VALUES: Mapping[str, Mapping[Any, Any]] = {
    "LOADS": {"pointer": 0, "tma": 1},
    "LOOPS": {1: 0, 2: 1},
}
"""By name in schema 1, the values in schema 1 and the values now."""


def config(kernel: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a kernel's config with the names and values of schema 2, in the same order."""
    names = NAMES.get(kernel, {})
    made = {}
    for name, value in given.items():
        if name in names and name in VALUES:
            value = VALUES[name].get(value, value)
        made[names.get(name, name)] = value
    return made


def document(data: Any) -> Any:
    """Returns a parsed document of schema 1 as one of schema 2. It changes `data` in place."""
    data["tunefa_schema"] = 2
    records = data.get("records")
    for entry in records if isinstance(records, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("kernel"), str):
            _record(entry, entry["kernel"])
    return data


def _record(entry: dict[str, Any], kernel: str) -> None:
    certificate = entry.get("certificate")
    runner_up = certificate.get("runner_up") if isinstance(certificate, dict) else None
    for holder in (entry, runner_up):
        if isinstance(holder, dict) and isinstance(holder.get("config"), dict):
            holder["config"] = config(kernel, holder["config"])
