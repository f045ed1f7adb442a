"""Kernels in Triton and Gluon, compiled as far as their host sides read: no machine code is made.

The compiler's passes down to its own IR run, as they find out what a launch passes for a tensor
descriptor. LLVM and ptxas, which take three quarters of the time, do not run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import triton

_KEY = "without machine code"
_FUNCTION = re.compile(r"tt\.func public @(\w+)\((.*?)\) attributes", re.DOTALL)
_PARAMETER = re.compile(r"%\w+: (!tt\.ptr|!tt\w*\.tensordesc|[if]\d+)")
_SIZES = {"!tt.ptr": ".u64", "i32": ".u32", "i64": ".u64", "f32": ".f32"}
_READ_BY_LAUNCHES = {
    "shared": 4096,
    "tmem_size": 0,
    "global_scratch_size": 0,
    "global_scratch_align": 1,
    "profile_scratch_size": 0,
    "profile_scratch_align": 1,
}


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the last stages of Triton in this process. Its cache holds what is made under
    names of its own."""
    monkeypatch.setattr(triton.knobs.runtime, "add_stages_inspection_hook", _hook)


def _hook(*about: Any) -> tuple[str, str] | None:
    if not about:
        return _KEY, _KEY
    stages: dict[str, Callable[[Any, dict[str, Any]], Any]] = about[1]
    stages["llir"] = _entry
    stages["ptx"] = lambda text, metadata: text
    stages["cubin"] = lambda text, metadata: text.encode()
    return None


def _entry(module: Any, metadata: dict[str, Any]) -> str:
    """Returns the head of the PTX that there would be, which has the sizes of all parameters."""
    found = _FUNCTION.search(str(module))
    assert found, "the compiler's IR has no kernel"
    name, parameters = found[1], [*_PARAMETER.findall(found[2]), "!tt.ptr", "!tt.ptr"]
    metadata.update(_READ_BY_LAUNCHES, name=name)
    declared = [
        f".param .align 64 .b8 {name}_{place}[128]"
        if kind.endswith("tensordesc")
        else f".param {_SIZES[kind]} {name}_{place}"
        for place, kind in enumerate(parameters)
    ]
    return f".visible .entry {name}(\n{', '.join(declared)}\n)"
