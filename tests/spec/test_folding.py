"""tunefa/spec/folding.py: what is left of an expression where some names are known."""

from __future__ import annotations

import pytest

from tunefa.errors import TunefaError
from tunefa.spec.expr import Expr

KNOWN = {"BLOCK_M": 64, "causal": True, "dtype": "bf16", "head_dim": 128}


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ("BLOCK_M * 2", "128"),
        ("ceil_div(seqlen_q, BLOCK_M) * 2 * head_dim", "ceil_div(seqlen_q, 64) * 2 * 128"),
        ("8 if causal else seqlen_q", "8"),
        ("8 if seqlen_q > 1 else BLOCK_M", "8 if seqlen_q > 1 else 64"),
        ("causal and seqlen_q > BLOCK_M", "seqlen_q > 64"),
        ("causal or seqlen_q > BLOCK_M", "True"),
        ("not causal and seqlen_q > 1", "False"),
        ("seqlen_q > 1 or causal", "seqlen_q > 1 or True"),
        ("dtype in ('bf16', 'fp16')", "True"),
        ("head_dim in (64, seqlen_q)", "128 in (64, seqlen_q)"),
        ("-BLOCK_M + seqlen_k", "-64 + seqlen_k"),
        ("1 <= BLOCK_M <= max(64, head_dim)", "True"),
        ("seqlen_q + seqlen_k", "seqlen_q + seqlen_k"),
    ],
)
def test_what_is_known_is_computed(source: str, left: str) -> None:
    made = Expr(source).given(KNOWN)
    assert made.source == left
    assert made.names == frozenset({"seqlen_q", "seqlen_k"} & Expr(source).names) & made.names
    env = {"seqlen_q": 100, "seqlen_k": 300}
    assert made(env) == Expr(source)({**KNOWN, **env})


def test_what_cannot_be_computed_fails_when_it_is_asked() -> None:
    made = Expr("seqlen_q // (BLOCK_M - 64)", "file:3").given(KNOWN)
    with pytest.raises(TunefaError, match="file:3: in"):
        made({"seqlen_q": 1})
    constant = Expr("head_dim % (BLOCK_M - 64)").given(KNOWN)
    assert not constant.names
    with pytest.raises(TunefaError, match="modulo"):
        constant({})
