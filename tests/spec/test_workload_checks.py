"""tunefa/spec/workload_checks.py: what goes with the op decode and what does not, with messages
that say what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tunefa.errors import TunefaError
from tunefa.spec.workload import Workload
from tunefa.spec.workload_checks import check

FIELDS: dict[str, Any] = {
    "op": "decode", "batch": 4, "heads": 32, "heads_kv": 8, "seqlen_q": 1, "seqlen_k": 4096,
    "head_dim": 128, "head_dim_v": 128, "dtype": "bf16", "causal": True, "window_left": None,
    "window_right": None, "softcap": False, "sinks": False, "e4m3cache": False, "mla": False,
    "prefix": False,
    "page_size": None, "varlen": False, "deterministic": False, "batchvariant": False,
    "accuracy": "standard",
}  # fmt: skip
"""All fields of a `Workload`, which are valid."""
SIZES = ("batch", "heads", "heads_kv", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v")


def refusal(**changes: Any) -> str:
    """The message for these fields."""
    with pytest.raises(TunefaError) as caught:
        check({**FIELDS, **changes})
    return str(caught.value)


def test_the_fields_are_those_of_a_workload() -> None:
    assert Workload(**FIELDS).__dict__ == FIELDS


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dtype": "fp16"},
        {"page_size": 1, "varlen": True},
        {"page_size": 17, "sinks": True, "softcap": True},
        {"page_size": 16, "e4m3cache": True},
        {"mla": True, "head_dim": 576, "head_dim_v": 512, "heads_kv": 1, "page_size": 64},
        {"page_size": 16, "prefix": True, "sinks": True, "softcap": True, "varlen": True},
        {"page_size": 16, "varlen": True, "batchvariant": True},
        {"window_left": 0, "accuracy": "fast"},
        {"causal": False, "seqlen_q": 9000},
        {"op": "prefill", "page_size": 64, "varlen": True, "sinks": True, "e4m3cache": True},
        {"op": "prefill", "page_size": 1, "causal": False, "window_right": 3},
        {"op": "fwd", "dtype": "e4m3"},
        {"op": "fwd", "causal": False, "window_right": 3},
        {"op": "bwd", "dtype": "fp32", "deterministic": True},
    ],
)
def test_what_a_kernel_may_serve_passes(changes: dict[str, Any]) -> None:
    check({**FIELDS, **changes})


@pytest.mark.parametrize("dtype", ["fp32", "e4m3"])
def test_a_cache_has_16_bit_numbers(dtype: str) -> None:
    said = "with the op decode: it serves bf16 and fp16"
    assert refusal(dtype=dtype) == f"dtype {dtype} {said}"
    assert refusal(dtype="fp8").startswith("unknown dtype 'fp8'")


def test_packed_queries_over_a_cache_need_pages() -> None:
    assert refusal(op="prefill").startswith("page_size is missing: the op prefill reads a cache")
    said = "dtype fp32 with the op prefill: it serves bf16 and fp16"
    assert refusal(op="prefill", page_size=16, dtype="fp32") == said


def test_queries_over_a_cache_see_nothing_beyond_their_diagonal() -> None:
    said = refusal(causal=False, window_right=3)
    assert said.startswith("window_right is 3 with the op decode: its queries are the last ones")
    assert said.endswith("so leave it out")
    assert "make it full, or leave out window_right" in refusal(window_right=3)


@pytest.mark.parametrize("op", ["fwd", "bwd"])
@pytest.mark.parametrize(
    ("name", "value"), [("page_size", 16), ("sinks", True), ("e4m3cache", True)]
)
def test_pages_and_sinks_go_with_a_cache(op: str, name: str, value: object) -> None:
    said = (
        f"{name} goes with the ops over a cache, decode (--decode) and prefill (--page-size): {op} "
        f"kernels have none"
    )
    assert refusal(op=op, **{name: value}) == said
    with pytest.raises(TunefaError) as caught:
        Workload.of(op=op, seqlen_q=64, **{name: value})
    assert str(caught.value) == said


@pytest.mark.parametrize(("op", "more"), [("fwd", {}), ("bwd", {}), ("prefill", {"page_size": 16})])
@pytest.mark.parametrize("name", ["mla", "prefix", "batchvariant"])
def test_latent_attention_prefixes_and_free_bits_go_with_decode(
    op: str, more: dict[str, object], name: str
) -> None:
    said = f"{name} goes with the op decode (--decode): {op} kernels have none"
    assert refusal(**{"op": op, name: True, **more}) == said


@pytest.mark.parametrize("op", ["fwd", "decode"])
def test_only_gradients_may_be_asked_to_be_deterministic(op: str) -> None:
    said = "deterministic goes with the op bwd (--backward): forward kernels always are"
    assert refusal(op=op, deterministic=True) == said


def test_attention_in_e4m3_has_no_gradient() -> None:
    assert refusal(op="bwd", dtype="e4m3").endswith("has no gradient: train in bf16 or fp16")


@pytest.mark.parametrize("name", [*SIZES, "page_size", "window_right"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "8"])
def test_sizes_are_whole_numbers_from_1(name: str, value: object) -> None:
    said = f"{name} is {value!r}: give a whole number from 1, such as 8192 or 8k (8192)"
    assert refusal(**{name: value}) == said


def test_a_window_may_be_the_diagonal_alone() -> None:
    assert refusal(window_left=-1).startswith("window_left is -1: give a whole number from 0")


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_a_cache_are_never_left_out(name: str) -> None:
    assert refusal(**{name: None}).startswith(f"{name} is None: give a whole number from 1")


def test_messages_give_the_numbers_to_use() -> None:
    assert refusal(heads=12).endswith("so heads_kv must divide 12")
    assert refusal(head_dim=15).endswith("pad it with zeros to 16 and keep the scale")
    assert "use 256 or less, or mla (decode), which serves up to 512" in refusal(head_dim_v=257)
    assert refusal(op="decoed").startswith("unknown op 'decoed': did you mean decode?")
    assert refusal(accuracy="fats").endswith("did you mean fast? (known: standard, fast)")


@pytest.mark.parametrize(("name", "value"), [("causal", "no"), ("softcap", 3.0), ("varlen", 1)])
def test_flags_are_bools(name: str, value: Any) -> None:
    assert refusal(**{name: value}) == f"{name} is {value!r}: give True or False"


def test_values_of_latent_attention_are_columns_of_the_keys() -> None:
    latent = {"mla": True, "heads_kv": 1, "head_dim": 576, "head_dim_v": 512}
    said = refusal(**{**latent, "head_dim_v": 576})
    assert said.startswith("head_dim_v 576 is above 512")
    said = refusal(mla=True, heads_kv=1)
    assert said.startswith("head_dim_v is 128 and head_dim 128 with mla: its values are the first")
    assert refusal(**{**latent, "head_dim": 577}).endswith("use 576 or less")
    assert refusal(**latent, e4m3cache=True).startswith("e4m3cache with mla: its cache is in bf16")


def test_a_prefix_is_shared_in_pages_alone() -> None:
    assert refusal(prefix=True).endswith("which sequences share: give page_size")
    said = "with prefix: kernels that share a prefix serve none"
    assert refusal(prefix=True, page_size=16, window_left=0) == f"window_left {said}"
    assert refusal(prefix=True, page_size=16, e4m3cache=True) == f"e4m3cache {said}"
    latent = {"mla": True, "heads_kv": 1, "head_dim": 576, "head_dim_v": 512}
    assert refusal(prefix=True, page_size=16, **latent) == f"mla {said}"
