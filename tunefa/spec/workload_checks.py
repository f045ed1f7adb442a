"""The checks of a workload's fields: what no kernel can serve is a TunefaError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunefa.errors import TunefaError, unknown
from tunefa.spec.sizes import bad_size
from tunefa.spec.workload_parts import (
    ACCURACIES,
    CACHE_OPS,
    DTYPES,
    MAX_HEAD_DIM,
    MAX_MLA_DIMS,
    MIN_HEAD_DIM,
    OPS,
    SIDES,
    SIZES,
)

CACHE_DTYPES = ("bf16", "fp16")
"""The dtypes of attention over a cache."""
_OF_DECODE = ("mla", "prefix", "batchvariant")
"""Fields of no other op."""

_FLAGS = (
    "causal", "softcap", "sinks", "e4m3cache", "mla", "prefix", "varlen", "deterministic",
    "batchvariant",
)  # fmt: skip


def check(fields: Mapping[str, Any]) -> None:
    """Raises TunefaError for the first field of a `Workload` with a value that no kernel serves."""
    for name, known in (("op", OPS), ("dtype", DTYPES), ("accuracy", ACCURACIES)):
        if fields[name] not in known:
            raise unknown(name, str(fields[name]), known)
    for name in SIZES.values():
        value = fields[name]
        optional = name in (*SIDES, "page_size") and value is None
        least = 0 if name == "window_left" else 1
        if not optional and not (type(value) is int and value >= least):
            raise bad_size(name, value, least)
    for name in _FLAGS:
        if type(fields[name]) is not bool:
            raise TunefaError(f"{name} is {fields[name]!r}: give True or False")
    if fields["heads"] % fields["heads_kv"]:
        raise TunefaError(
            f"heads {fields['heads']} is not a multiple of heads_kv {fields['heads_kv']}: each KV "
            f"head serves equally many query heads, so heads_kv must divide {fields['heads']}"
        )
    for name in ("head_dim", "head_dim_v"):
        _check_head_dim(name, fields[name], fields["mla"])
    if fields["window_right"] is not None and fields["causal"]:
        raise TunefaError(
            f"window_right is {fields['window_right']} with a causal mask, which hides every key "
            f"beyond the diagonal: make it full, or leave out window_right"
        )
    _check_op(fields)


def _check_head_dim(name: str, value: int, is_mla: bool) -> None:
    if value < MIN_HEAD_DIM:
        raise TunefaError(
            f"{name} {value} is below {MIN_HEAD_DIM}, the smallest tunefa's kernels serve: "
            f"pad it with zeros to {MIN_HEAD_DIM} and keep the scale"
        )
    most = MAX_MLA_DIMS[name] if is_mla else MAX_HEAD_DIM
    if value > most:
        with_mla = "" if is_mla else f", or mla (decode), which serves up to {MAX_MLA_DIMS[name]}"
        raise TunefaError(
            f"{name} {value} is above {most}, the largest tunefa's kernels serve: use {most} or "
            f"less{with_mla}"
        )


def _check_op(fields: Mapping[str, Any]) -> None:
    """Raises TunefaError for a field that does not go with the op."""
    op, dtype = fields["op"], fields["dtype"]
    if op == "bwd" and dtype == "e4m3":
        raise TunefaError("attention in e4m3 has no gradient: train in bf16 or fp16")
    if fields["deterministic"] and op != "bwd":
        raise TunefaError(
            "deterministic goes with the op bwd (--backward): forward kernels always are"
        )
    if op in CACHE_OPS:
        if dtype not in CACHE_DTYPES:
            raise TunefaError(f"dtype {dtype} with the op {op}: it serves bf16 and fp16")
        if op == "prefill" and fields["page_size"] is None:
            raise TunefaError(
                "page_size is missing: the op prefill reads a cache with pages, so give the keys "
                "of a page (--page-size 64, or page64 in a workload's text)"
            )
        if op == "decode" and fields["window_right"] is not None:
            raise TunefaError(
                f"window_right is {fields['window_right']} with the op decode: its queries are the "
                f"last ones of their sequence, so leave it out"
            )
        for name in _OF_DECODE:
            if fields[name] and op != "decode":
                raise TunefaError(_not_of(op, name))
        _check_mla(fields)
        _check_prefix(fields)
        return
    for name in ("page_size", "sinks", "e4m3cache", *_OF_DECODE):
        if fields[name]:
            raise TunefaError(_not_of(op, name))


def _not_of(op: str, name: str) -> str:
    """Returns the message for a field that the op does not have."""
    if name in _OF_DECODE:
        return f"{name} goes with the op decode (--decode): {op} kernels have none"
    return (
        f"{name} goes with the ops over a cache, decode (--decode) and prefill (--page-size): {op} "
        "kernels have none"
    )


def _check_mla(fields: Mapping[str, Any]) -> None:
    """Raises TunefaError where `mla` says that values are columns of the keys and they cannot."""
    if not fields["mla"]:
        return
    if fields["e4m3cache"]:
        raise TunefaError("e4m3cache with mla: its cache is in bf16 or fp16, as the queries are")
    if fields["head_dim_v"] >= fields["head_dim"]:
        raise TunefaError(
            f"head_dim_v is {fields['head_dim_v']} and head_dim {fields['head_dim']} with mla: its "
            f"values are the first columns of the keys, so make head_dim_v less, such as "
            f"head_dim {MAX_MLA_DIMS['head_dim']} and head_dim_v {MAX_MLA_DIMS['head_dim_v']}"
        )


def _check_prefix(fields: Mapping[str, Any]) -> None:
    """Raises TunefaError where `prefix` says that sequences share pages and they cannot."""
    if not fields["prefix"]:
        return
    if fields["page_size"] is None:
        raise TunefaError("prefix needs a cache with pages, which sequences share: give page_size")
    windowed = fields["window_left"] is not None
    others = (("window_left", windowed), *((name, fields[name]) for name in ("e4m3cache", "mla")))
    for name, asked in others:
        if asked:
            raise TunefaError(f"{name} with prefix: kernels that share a prefix serve none")
