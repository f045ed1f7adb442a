"""Calls of attention on the CPU, and the plans that the fake kernel's runtime makes for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.support.fake_kernel import H200, FakeKernel, FakeLanguage
from tests.support.fixed_store import Fixed
from tests.support.sample_records import measured
from tunefa.measure import reference
from tunefa.runtime import plan
from tunefa.runtime.call import Call, Options, Tensors, heads_first
from tunefa.runtime.chip import Chip
from tunefa.runtime.plan import Plan
from tunefa.spec.workload import Workload
from tunefa.store.record import Record

WORKLOAD = Workload.parse("b2_h8_kv2_q16_k16_d64_bf16_causal")
TMA = {"BLOCK_M": 128, "USE_TMA": 1}
POINTER = {"BLOCK_M": 128, "USE_TMA": 0}


def call(layout: str = "bshd", dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Call:
    """One of WORKLOAD, with some other tensors, a `window` or `descales`."""
    descales = changes.pop("descales", ())
    q = torch.randn(2, 16, 8, 64, dtype=dtype)
    kv = torch.randn(2, 16, 2, 64, dtype=dtype)
    options = Options.of(True, changes.pop("window", None), layout)
    made = {"q": q, "k": kv, "v": kv, **changes}
    if layout == "bhsd":
        made = {name: tensor.transpose(1, 2) for name, tensor in made.items()}
    return Call.of(Tensors(**made, descales=descales), options, None)


def plan_of(
    call: Call,
    language: FakeLanguage,
    *records: Record,
    kernel: FakeKernel | None = None,
    chip: Chip = H200,
) -> Plan:
    """The plan for a call where these records are known."""
    fake: Any = kernel or FakeKernel()
    made: Plan = plan.best_plan(call, chip, Fixed(records), [fake], language.compile)
    return made


def reference_of(call: Call, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """(out, lse) of the call, with `out` in its layout: what a fake kernel's launch computes."""
    out, lse = reference.attention(replace(call, scale=scale or call.scale))
    return heads_first(out, call.options.layout), lse


def record(config: dict[str, Any], workload: str = str(WORKLOAD), **changes: Any) -> Record:
    """A config, measured on an H200."""
    return measured(workload, config=config, **changes)


def unaligned(kind: str) -> Call:
    """A call whose q, k or v TMA cannot read."""
    long = torch.randn(2 * 16 * 8 * 64 + 1, dtype=torch.bfloat16)
    return {
        "base": lambda: call(q=long[1:].view(2, 16, 8, 64)),
        "strides": lambda: call(v=torch.randn(2, 16, 2, 72, dtype=torch.bfloat16)),
        "expanded": lambda: call(
            k=torch.randn(2, 16, 1, 64, dtype=torch.bfloat16).expand(-1, -1, 2, -1)
        ),
    }[kind]()


SMALL = torch.empty(2, 16, 8, 8).bfloat16()
ONE = torch.empty(2, 1, 8, 64).bfloat16()
LONG = ONE.as_strided(ONE.shape, (512, 2**31, 64, 1))  # one query a head


UNSERVED = [
    (call(), Chip("GeForce GTX", None, "there is no arch sm75"), "there is no arch sm75"),
    (call(dtype=torch.float64), H200, "no kernel takes torch.float64"),
    (call(q=torch.empty(2, 0, 8, 64).bfloat16()), H200, "a tensor is empty"),
    (
        call(q=LONG, k=ONE, v=ONE),
        H200,
        r"q has strides \(512, 64, 2147483648, 1\), too large for 32 bits",
    ),
    (call(q=SMALL, k=SMALL, v=SMALL), H200, "head_dim 8 is below 16"),
]
"""Calls, the chips they are made on, and why no kernel serves them there."""
