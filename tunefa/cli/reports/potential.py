"""The result of a search against the default, and against what the chip can do."""

from __future__ import annotations

from typing import Any

from tunefa.cli.reports import text, trial_rows
from tunefa.cli.reports.trial_rows import Row
from tunefa.costmodel import gpu as gpu_model
from tunefa.costmodel import roofline
from tunefa.search.request import Result
from tunefa.spec import looked_up
from tunefa.spec.arch import GpuArch
from tunefa.spec.workload import Workload
from tunefa.store.record import Record


def to_data(result: Result) -> dict[str, Any]:
    """Plain data for `--json`: the default, the speed-up over it, and the roofline."""
    default, record = trial_rows.default_row(result), result.record
    bounds = roofline.roofline(result.request.workload, result.request.target)
    return {
        "default": default.to_data() if default else None,
        "speedup_over_default": default.median_us / record.median_us
        if default and record
        else None,
        "roofline": {
            "bound_us": bounds.least_us,
            "bound_by": bounds.bound_by,
            "bounds_us": dict(bounds.bounds_us),
            "fraction": bounds.least_us / record.median_us if record else None,
        },
        "decode": _decode(result, record),
    }


def facts(result: Result, record: Record) -> dict[str, str]:
    """The same in words, for the record of the search."""
    bounds = roofline.roofline(result.request.workload, result.request.target)
    named = trial_rows.named(result)
    default, best = named.get("default"), named.get("recommended")
    said = {} if default is None else {"speed-up": _speedup(record, default, best)}
    said["roofline"] = (
        f"{bounds.least_us / record.median_us:.0%} of what the chip can do: "
        f"{text.number(bounds.least_us, 1)} us, bounded by its {bounds.bound_by}"
    )
    if decode := _decode(result, record):
        said["decode"] = _sentence(decode)
    return said


def _speedup(record: Record, default: Row, best: Row | None) -> str:
    """The speed-up over the default in words; `best` is the row of a predicted record."""
    if default.first.is_of(record):
        return "none: the default is " + ("recommended" if best else "the best config found")
    ratio = default.median_us / record.median_us
    over = f"over the default of {default.first.kernel} ({text.number(default.median_us, 1)} us)"
    if best is None:
        return f"{ratio:.2f}x {over}"
    error = default.comparison_error(best.first)
    reach = "beyond" if ratio > 1 + error else "within"
    return f"{ratio:.2f}x expected {over}, {reach} the model's error of {error:.0%}"


def _decode(result: Result, record: Record | None) -> dict[str, Any] | None:
    """The bound of a decode-like workload on a GPU; None for others, and without a record."""
    request = result.request
    if request.workload.op != "fwd":
        return None
    workload, device = request.workload.dense_equivalent, request.target.device
    if workload.seqlen_q > roofline.DECODE_ROWS or record is None or record.resources is None:
        return None
    if not isinstance(request.target.arch, GpuArch):
        return None
    kernel = next(each for each in request.kernels if each.name == record.kernel)
    if kernel.is_library:
        return None
    tiling = request.case(kernel).tiling(record.config)
    made = gpu_model.predict(
        request.workload, request.target.arch, device, tiling, record.resources
    )
    ctas, kv_bytes = gpu_model.tiles(workload, tiling), roofline.kv_bytes(request.workload)
    return {
        "bound_by": "occupancy" if ctas < device.sms else roofline.HBM,
        "ctas": ctas,
        "sms": device.sms,
        "ctas_that_fit": device.sms * made.occupancy.blocks_per_sm,
        "kv_bytes": kv_bytes,
        "kv_us": kv_bytes / device.hbm_bytes_per_s * 1e6,
        "splits_keys_as": _as_decode(request.workload, device.sms),
    }


def _as_decode(workload: Workload, sms: int) -> str | None:
    """The workload over a cache that calls of a forward pass run as; None if they do not."""
    asked = looked_up.of_call(workload, sms)
    return str(asked) if asked.op == "decode" else None


def _sentence(decode: dict[str, Any]) -> str:
    """The same in words."""
    kv, sms = f"{decode['kv_bytes'] / 2**20:,.1f} MiB", decode["sms"]
    reads = f"reading K and V, {kv}, takes HBM {decode['kv_us']:,.1f} us"
    ctas = f"{decode['ctas']:,} CTAs, and {sms} SMs can hold {decode['ctas_that_fit']:,}"
    if decode["bound_by"] == roofline.HBM:
        return f"bounded by {roofline.HBM}: {reads}; there are {ctas}"
    split = ""
    if decode["splits_keys_as"] is not None:
        split = f". Calls run as {decode['splits_keys_as']}, which splits keys"
    return (
        f"bounded by occupancy: one CTA reads all keys of its sequence (no split-KV), so there are "
        f"{ctas}: {decode['ctas'] / sms:.0%} of the SMs work; {reads}{split}"
    )
