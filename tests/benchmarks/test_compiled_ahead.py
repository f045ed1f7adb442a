"""benchmarks/compiled_ahead.py: what is compiled, and what is said of failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import compiled_ahead
from tunefa.compile import languages
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload


@pytest.mark.slow
def test_binaries_are_found_in_caches_and_failures_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    workload = Workload.parse("fwd_h1_q64_d16_bf16_full")
    case = Case(kernels.load("attention_fwd_triton"), workload, Target.named("sm80"))
    config = case.default()
    wrong = {**config, "BLOCK_M": 48}  # Triton has powers of two
    (said,) = compiled_ahead.compile_all([(case.names, config), (case.names, wrong)])
    assert said.startswith(f"{case.names[0]} {case.names[1]}: ") and len(said) > 60
    assert list(tmp_path.glob("*/*.cubin"))
    again = languages.load("triton").compile(case, config)
    assert again.resources.registers
