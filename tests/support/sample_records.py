"""Records for tests: one that is plausible, and hypothesis strategies for odd ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tunefa.spec.trial import MODES, Resources
from tunefa.spec.workload import Workload
from tunefa.store.record import Record

CONFIG: dict[str, Any] = {
    "BLOCK_M": 128,
    "BLOCK_N": 64,
    "num_warps": 8,
    "num_stages": 3,
    "USE_TMA": 1,
    "maxnreg": 0,
    "ORDER": "heavy_first",
    "PACK_GQA": 1,
}


def measured(workload: str = "fwd_q4096", **changes: Any) -> Record:
    """A record measured on an H200."""
    record = Record(
        kernel="attention_fwd_triton",
        arch="sm90",
        device="NVIDIA H200",
        workload=Workload.parse(workload),
        config=dict(CONFIG),
        objective="measured",
        median_us=412.5,
        tflops=533.25,
        resources=Resources(smem_bytes=98304, registers=168, spill_bytes=0, stack_bytes=None),
        certificate=None,
        provenance={
            "tunefa": "0.1.0",
            "triton": "3.7.1",
            "source_hash": "0123abcd",
            "date": "2025-01-31T12:00:00+00:00",
            "trials": 60,
            "check": {"error": 0.0012, "against": "fp64"},
        },
    )
    return replace(record, **changes)


def predicted(workload: str = "fwd_q4096", **changes: Any) -> Record:
    """The model's pick for sm90."""
    changes = {"device": None, "objective": "predicted", "mode": None, **changes}
    return measured(workload, **changes)


def dated(date: str, **changes: Any) -> dict[str, Any]:
    """A provenance of that date."""
    return {"source_hash": "0123abcd", "date": date, **changes}


_SCALARS = (
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
_PLAIN = st.recursive(
    st.none() | _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_MAPPINGS = st.dictionaries(st.text(), _PLAIN, max_size=4)
_NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
_DEVICES = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1)
_SIZES = st.none() | st.integers(0, 2**40)
_POSITIVE = st.floats(min_value=1e-300, max_value=1e300)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any record that the class accepts, its texts and numbers as odd as they come."""
    device = draw(st.none() | _DEVICES)
    heads_kv = draw(st.integers(1, 8))
    return Record(
        kernel=draw(_NAMES),
        arch=draw(_NAMES),
        device=device,
        workload=Workload(
            batch=draw(st.integers(1, 64)),
            heads=heads_kv * draw(st.integers(1, 8)),
            heads_kv=heads_kv,
            seqlen_q=draw(st.integers(1, 2**20)),
            seqlen_k=draw(st.integers(1, 2**20)),
            head_dim=draw(st.integers(16, 256)),
            head_dim_v=draw(st.integers(16, 256)),
            dtype=draw(st.sampled_from(["bf16", "fp16", "fp32"])),
            causal=(causal := draw(st.booleans())),
            window_left=draw(st.none() | st.integers(0, 2**20 - 1)),
            window_right=None if causal else draw(st.none() | st.integers(1, 2**20)),
            softcap=draw(st.booleans()),
        ),
        config=draw(st.dictionaries(st.text(), _SCALARS, max_size=6)),
        objective="predicted" if device is None else "measured",
        median_us=draw(_POSITIVE),
        tflops=draw(_POSITIVE),
        resources=draw(st.none() | st.builds(Resources, _SIZES, _SIZES, _SIZES, _SIZES)),
        certificate=draw(st.none() | _MAPPINGS),
        provenance={
            **draw(_MAPPINGS),
            "source_hash": draw(st.text()),
            "date": draw(st.datetimes()).isoformat() + "Z",
        },
        mode=draw(st.sampled_from([*MODES, None])) if device is not None else None,
    )
